"""Masks that are tensors of torch, in the words of attention: keys that are left out, causal, a window,
packed sequences, blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .._mask import AttentionMask
from . import private

BLOCKS = (128, 64, 32, 16)
MOST_SEQUENCES = 1024
MOST_KEPT = 16  # masks whose words are kept, and whose copies are held
MOST_MADE = 64  # AttentionMasks that are kept for masks that say the same


class Words(NamedTuple):
    """What a mask keeps: of the keys from `first` to `last` those of `mask`, `causal` and `window`, aligned
    at the ends of queries and of these keys. `packed`: the mask is over all items of the batch, one after
    the other."""

    first: int
    last: int
    causal: bool = False
    window: int | None = None
    mask: AttentionMask | None = None
    packed: bool = False


class _Made:
    """The latest of what was made, by key."""

    def __init__(self, most: int) -> None:
        self.entries, self._most, self._lock = dict[tuple, AttentionMask](), most, threading.Lock()

    def get(self, key: tuple, make: Callable[[], AttentionMask]) -> AttentionMask:
        found = self.entries.get(key)
        if found is None:
            found = make()
            with self._lock:
                while len(self.entries) >= self._most:
                    del self.entries[next(iter(self.entries))]
                found = self.entries.setdefault(key, found)
        return found


_made = _Made(MOST_MADE)

# ---- one item of a batch, by the range of keys that each query keeps ----


class _Rows(NamedTuple):
    """Query i keeps the keys from low[i] to high[i]; 0 and 0 where it keeps none."""

    low: np.ndarray
    high: np.ndarray
    keys: int

    @property
    def at(self) -> np.ndarray:
        """Each query's diagonal position: that of the last query is the last key."""
        return np.arange(len(self.low)) + self.keys - len(self.low)


class _Item(NamedTuple):
    """Queries and keys of each sequence, in order."""

    sizes: tuple[tuple[int, int], ...]
    causal: bool
    window: int  # 0: none


def _offsets(sizes: tuple) -> tuple[np.ndarray, np.ndarray]:
    both = np.concatenate(([(0, 0)], np.cumsum(np.array(sizes, np.int64).reshape(-1, 2), 0)))
    return both[:, 0].copy(), both[:, 1].copy()


def _clipped(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    some = high > low
    return np.where(some, low, 0), np.where(some, high, 0)


def _rows_of(item: _Item) -> tuple[np.ndarray, np.ndarray]:
    """What such sequences keep."""
    sizes = np.array(item.sizes, np.int64).reshape(-1, 2)
    q, k = _offsets(item.sizes)
    of = np.repeat(np.arange(len(sizes)), sizes[:, 0])
    at = np.arange(q[-1]) + (k[1:] - q[1:])[of]
    low, high = k[:-1][of], k[1:][of]
    if item.causal:
        high = np.minimum(high, at + 1)
        if item.window:
            low = np.maximum(low, at - item.window + 1)
    return _clipped(low, high)


def _says(item: _Item, low: np.ndarray, high: np.ndarray) -> bool:
    return all(map(np.array_equal, _rows_of(item), (low, high)))


def _sequences(rows: _Rows) -> _Item | None:
    """Sequences that keep exactly this."""
    low, high, keys = rows
    some, at, queries = high > 0, rows.at, len(rows.low)
    causal = bool((high == at + 1)[some].all())
    begins = np.ones(queries, bool)
    if causal:  # a query that does not see the key before its own begins a sequence
        begins[1:] = (some[1:] != some[:-1]) | (some & (low >= at))[1:]
    else:
        begins[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    starts = np.flatnonzero(begins)
    if len(starts) > MOST_SEQUENCES:
        return None
    sizes: list[tuple[int, int]] = []
    used = 0
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), queries]):
        if not some[start]:
            sizes.append((end - start, 0))
            continue
        first, last = int(low[start]), int(high[end - 1])
        if first < used:
            return None
        if first > used:
            sizes.append((0, first - used))
        sizes.append((end - start, last - first))
        used = last
    if used < keys:
        sizes.append((0, keys - used))
    item = _Item(tuple(sizes), causal, 0)
    if causal and not _says(item, low, high):
        item = item._replace(window=int((high - low).max()))
    return item if _says(item, low, high) else None


def _item(rows: _Rows, unseen: np.ndarray, padding_is_free: bool) -> _Item | None:
    """Sequences that keep exactly this, or all of it but what is free. `unseen`: keys that nobody sees."""
    found = _sequences(rows)
    if found is None and padding_is_free and len(rows.low) <= rows.keys:
        padded = unseen[rows.keys - len(rows.low) : rows.keys]
        found = _sequences(_Rows(np.where(padded, 0, rows.low), np.where(padded, 0, rows.high), rows.keys))
        if found is not None and not found.causal:  # cross attention: queries do not stand at keys
            found = None
    return found


# ---- a whole mask ----


def _one(item: _Item) -> Words | None:
    """The words of a mask for all items, where one sequence has all queries."""
    with_queries = [i for i, (q, _) in enumerate(item.sizes) if q]
    if len(with_queries) != 1:
        return None
    first = sum(k for _, k in item.sizes[: with_queries[0]])
    return Words(first, first + item.sizes[with_queries[0]][1], item.causal, item.window or None)


def _pack(items: list[_Item], keys: int) -> Words:
    causal, window = items[0].causal, max(i.window for i in items)
    sizes = tuple(size for i in items for size in i.sizes)
    q, k = _offsets(sizes)
    key = "packed", sizes, causal, window
    mask = _made.get(
        key, lambda: AttentionMask.document(q, kv_offsets=k, causal=causal, window=window or None)
    )
    return Words(0, keys, mask=mask, packed=True)


def _both_sides(rows: _Rows) -> Words | None:
    """A window that reaches as far after a query as before it."""
    some, at = rows.high > 0, rows.at
    window = int(np.maximum(rows.high - 1 - at, at - rows.low)[some].max()) + 1
    wanted = _clipped(np.maximum(at - window + 1, 0), np.minimum(at + window, rows.keys))
    if window < 1 or not all(map(np.array_equal, wanted, rows[:2])):
        return None
    return Words(0, rows.keys, window=window)


def _blocks(keep: np.ndarray) -> Words | None:
    """Whole blocks, of all heads or of each: (queries, keys) or (heads, queries, keys)."""
    queries, keys = keep.shape[-2:]
    above = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
    causal = not (keep & above).any()
    for words in ({}, {"causal": True}) if causal else ({},):
        for block in BLOCKS:
            if block >= 2 * max(queries, keys):
                continue
            wide = np.pad(keep, [(0, 0)] * (keep.ndim - 2) + [(0, -queries % block), (0, -keys % block)])
            rows = wide.shape[-2] // block
            tiles = wide.reshape(*wide.shape[:-2], rows, block, wide.shape[-1] // block, block)
            stored = tiles.any((-3, -1))
            whole = np.repeat(np.repeat(stored, block, -2), block, -1)[..., :queries, :keys]
            if words:
                whole = whole & ~above
            if np.array_equal(whole, keep):
                key = "blocks", stored.tobytes(), stored.shape, (queries, keys), block, bool(words)
                mask = _made.get(
                    key, lambda: AttentionMask.from_blocks(stored, (queries, keys), block, **words)
                )
                return Words(0, keys, mask=mask)
    return None


def explain(keep: np.ndarray, sizes: tuple[int, int, int], padding_is_free: bool) -> Words | str:
    """Words that keep exactly what these booleans do, or why there are none. keep is (batch, heads, queries,
    keys), any of which may be 1, for all; `sizes` are batch, queries and keys."""
    batch, queries, keys = sizes
    if keep.shape[1] > 1 and (keep == keep[:, :1]).all():
        keep = keep[:, :1]
    if keep.shape[0] > 1 and (keep == keep[:1]).all():
        keep = keep[:1]
    if keep.shape[0] > 1 and keep.shape[1] > 1:
        return "the mask differs by head and by item of the batch"
    if keep.shape[0] > 1 and queries == 1:
        return "each item has one query and keys of its own"
    if keep.shape[3] < keys:
        keep = np.broadcast_to(keep, (*keep.shape[:3], keys))
    if keep.shape[1] > 1:
        found = _blocks(np.broadcast_to(keep[0], (keep.shape[1], queries, keys)))
        return found or "the mask of a head is not made of whole blocks"
    keep = keep[:, 0]
    unseen = ~keep.any(1)  # (batch, keys)
    seen = np.flatnonzero(~unseen.all(0))
    if not len(seen):
        return Words(0, 0)
    count = keep.sum(2)  # (batch, queries)
    low = np.where(count > 0, keep.argmax(2), 0)
    high = np.where(count > 0, keys - keep[:, :, ::-1].argmax(2), 0)
    if np.array_equal(high - low, count):
        last = int(seen[-1]) + 1
        if queries > keep.shape[1]:
            low, high = (np.repeat(x, queries, 1) for x in (low, high))
        for end in (keys,) if last == keys else (keys, last):  # a static cache has room for keys to come
            rows = [_Rows(*x, end) for x in zip(low, high)]
            items = [_item(r, u, padding_is_free) for r, u in zip(rows, unseen)]
            if None in items or len({i.causal for i in items}) > 1:
                continue
            window = max(i.window for i in items)
            if window and any(not _says(i._replace(window=window), *_rows_of(i)) for i in items):
                continue
            found = _one(items[0]) if len(items) == 1 else None
            return found or _pack(items * (batch if len(items) == 1 else 1), end)
        if len(rows) == 1 and (found := _both_sides(_Rows(low[0], high[0], keys))):
            return found
    if len(keep) > 1:
        return "the mask differs by item of the batch, and not by padding or sequences alone"
    found = _blocks(np.broadcast_to(keep[0], (queries, keys)))
    return found or "the mask is no window, padding or sequences, and not made of whole blocks"


# ---- tensors ----


class _Entry(NamedTuple):
    storage: StorageWeakRef
    version: object
    copy: Tensor | None  # in host memory: what the tensor held
    words: Words | str


_entries: dict[tuple, _Entry] = {}
_lock = threading.Lock()


def _unexpanded(mask: Tensor, queries: int, keys: int, heads: int, batch: int) -> Tensor | None:
    """(batch, heads, queries, keys) with 1 for what is repeated; None where it does not fit."""
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    for d, size in enumerate((batch, heads, queries, keys)):
        if mask.shape[d] not in (1, size):
            return None
        if mask.shape[d] > 1 and mask.stride(d) == 0:
            mask = mask.narrow(d, 0, 1)
    return mask


def _booleans(mask: Tensor) -> np.ndarray | None:
    if mask.dtype is not torch.bool:
        kept = mask == 0
        if not (kept | (mask == float("-inf"))).all():
            return None
        mask = kept
    return mask.cpu().numpy()


def words_of(
    mask: Tensor, batch: int, heads: int, queries: int, keys: int, padding_is_free: bool
) -> Words | str:
    """The words of a plain tensor of booleans, or of 0 and -inf, or why there are none. They are kept for as
    long as the tensor lives and stays as it is."""
    if mask.dim() > 4:
        return "the mask has more than four dimensions"
    if mask.dtype is not torch.bool and not mask.dtype.is_floating_point:
        return "the mask is neither of booleans nor of floats"
    if mask.requires_grad:
        return "the mask requires a gradient"
    with torch.no_grad():
        small = _unexpanded(mask, queries, keys, heads, batch)
        if small is None:
            return "the mask does not fit the scores"
        if not small.is_cpu and small.is_inference():
            return "the mask was made in inference mode, where writes are not counted"
        key = (
            private.storage_id(small),
            small.storage_offset(),
            small.dtype,
            tuple(small.shape),
            tuple(step for size, step in zip(small.shape, small.stride()) if size > 1),
            (batch, queries, keys, padding_is_free),
        )
        found, version = _entries.get(key), private.version_of(small)
        if found is not None and not found.storage.expired():
            same = found.version == version if found.copy is None else torch.equal(found.copy, small)
            if same:
                return found.words
        if small.is_cuda and torch.cuda.is_current_stream_capturing():
            return "the mask is not known yet, and a CUDA graph is being captured"
        copy = small.clone() if small.is_cpu else None
        keep = _booleans(small)
        words = "the mask adds other numbers than 0 and -inf"
        if keep is not None:
            words = explain(keep, (batch, queries, keys), padding_is_free)
        with _lock:
            for k in [k for k, e in _entries.items() if e.storage.expired()]:
                del _entries[k]
            while len(_entries) >= MOST_KEPT:
                del _entries[next(iter(_entries))]
            _entries[key] = _Entry(StorageWeakRef(small.untyped_storage()), version, copy, words)
        return words
