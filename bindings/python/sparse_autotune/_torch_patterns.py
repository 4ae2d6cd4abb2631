"""Patterns of plain index tensors: torch's operators have no other way to a matrix's pattern than the tensors they are given."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _torch_modes
from ._matrix import make_pattern
from ._pattern import Pattern
from ._quick import _fast

CHECK_CALLS, CHECK_SECONDS = 16, 0.2  # a GPU's indices are looked at with every so many calls, and where the last look is older
_LATE = (
    "row_ptr, col_idx or a mask was written to in a way that torch does not count (a collective, DLPack, .data), and a product after that was computed with "
    "what it held before; later ones take what it holds now. After such a write call torch.autograd.graph.increment_version(tensor)"
)


def version_of(t: Tensor) -> int:
    """Torch's count of writes to a tensor; it counts none to those made in inference mode."""
    return 0 if t.is_inference() else t._version


def in_host_memory(t: Tensor) -> bool:
    return t.is_cpu


def _holds(tensors: tuple, arrays: tuple) -> bool:
    """Whether tensors in host memory hold what these arrays do."""
    same = None if _fast is None else _fast.holds(*tensors, *arrays)
    return all(np.array_equal(t.numpy(), a) for t, a in zip(tensors, arrays)) if same is None else same


def _warn_late(copies: tuple, arrays: tuple) -> None:
    if not _holds(copies, arrays):
        warnings.warn(_LATE, RuntimeWarning, stacklevel=2)


class Seen:
    """Index tensors as they were when a pattern was made of them: whether they still are is asked at each call.

    On the CPU what they hold is compared. On a GPU that would wait for all that is queued there, so torch's count of writes is asked. It misses some:
    now and then a copy into host memory is queued in front of a product, and later calls compare it once it is there. Whoever has read that
    product's result can be told, by the next call or when the tensors go. A CUDA graph keeps the pattern that it was captured with.
    """

    def __init__(self, tensors: tuple, arrays: tuple | None) -> None:
        """`arrays`: what they hold; None: nobody else has these tensors, and the count does."""
        self._versions: tuple | None = tuple(map(version_of, tensors))
        self._arrays = arrays if arrays is None else tuple(a.astype(str(t.dtype).removeprefix("torch."), copy=False) for t, a in zip(tensors, arrays))
        self._near = all(map(in_host_memory, tensors))
        self._calls, self._due = 0, time.monotonic() + CHECK_SECONDS
        self._copies: tuple | None = None
        self._last_look: weakref.finalize | None = None

    def still(self, tensors: tuple) -> bool:
        if self._arrays is not None and self._near:
            return _holds(tensors, self._arrays)
        if self._copies is not None and not _holds(self._copies, self._arrays):
            self._versions = self._copies = None
            self._last_look.detach()
            raise RuntimeError(_LATE)
        if self._versions != tuple(map(version_of, tensors)):
            return False
        if self._arrays is not None:
            self._calls += 1
            if self._calls >= CHECK_CALLS or time.monotonic() >= self._due:
                self._queue_copies(tensors)
        return True

    def _queue_copies(self, tensors: tuple) -> None:
        if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if self._copies is None:
            self._copies = _torch_modes.lasting(_host_copies, self._arrays, tensors[0].is_cuda)
            self._last_look = weakref.finalize(self, _warn_late, self._copies, self._arrays)
        for copy, t in zip(self._copies, tensors):
            copy.copy_(t, non_blocking=True)
        self._calls, self._due = 0, time.monotonic() + CHECK_SECONDS


def _host_copies(arrays: tuple, pinned: bool) -> tuple:
    with torch.inference_mode(False):
        copies = (torch.from_numpy(np.array(a)) for a in arrays)
        return tuple(t.pin_memory() if pinned else t for t in copies)


class Known:
    """Patterns by their index tensors, whose storages are held weakly: an address cannot be used again while it stands here."""

    def __init__(self) -> None:
        self._lock, self._entries, self._most = threading.Lock(), dict[tuple, tuple](), 64

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: tuple, tensors: tuple, pattern: Pattern, seen: Seen, own: bool = False) -> None:
        """For as long as the tensors live and stay as they are. `own`: the pattern keeps these itself, and is not kept for them."""
        kept: Callable[[], Pattern | None] = weakref.ref(pattern) if own else lambda: pattern
        entry = tuple(StorageWeakRef(t.untyped_storage()) for t in tensors), seen, kept
        with self._lock:
            self._entries[key] = entry
            if len(self._entries) >= self._most:  # now and then: looking through all of them takes time
                self._entries = {k: e for k, e in self._entries.items() if e[2]() is not None and not any(r.expired() for r in e[0])}
                self._most = max(64, 2 * len(self._entries))

    def drop(self, key: tuple) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def get(self, key: tuple, tensors: tuple) -> Pattern | None:
        storages, seen, kept = self._entries.get(key, ((), None, None))
        if kept is None or any(r.expired() for r in storages) or not seen.still(tensors):
            return None
        return kept()


_patterns = Known()


class Unchanged:
    """Index tensors beside those that autograd saves, which looks at the versions of its own only."""

    def __init__(self, *tensors: Tensor | None) -> None:
        self._tensors, self._given = tensors, [t for t in tensors if t is not None]
        self._versions, self._held = list(map(version_of, self._given)), list(map(_held, self._given))

    def get(self) -> tuple:
        written = list(map(version_of, self._given)) != self._versions
        if written or any(None not in pair and pair[0] != pair[1] for pair in zip(self._held, map(_held, self._given))):
            raise RuntimeError("indices of a matrix or a mask were changed in place after the call whose gradients are asked for")
        return self._tensors


def _held(t: Tensor) -> bytes | None:
    """What a tensor in host memory holds; None where modes and traces would see that it is read."""
    if t.is_cpu and t.layout is torch.strided and not _torch_modes.watched():
        try:
            return t.numpy().tobytes()
        except RuntimeError:  # fakes and wrappers hold nothing
            pass
    return None


def _place(t: Tensor) -> tuple:
    return t.untyped_storage()._cdata, t.storage_offset(), t.dtype, tuple(t.shape), t.stride()


def _index_key(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> tuple:
    return _place(row_ptr), _place(col_idx), shape, block


def remember(row_ptr: Tensor, col_idx: Tensor, pattern: Pattern, own: bool = False) -> Seen:
    """Lets operators find the pattern of these index tensors. `own`: nobody else has them."""
    tensors = row_ptr, col_idx
    seen = Seen(tensors, None if own else (pattern.row_ptr, pattern.col_idx))
    _patterns.add(_index_key(row_ptr, col_idx, pattern.shape, pattern.block), tensors, pattern, seen, own)
    return seen


def forget(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> None:
    """After writes that nothing may have seen."""
    _patterns.drop(_index_key(row_ptr, col_idx, shape, block))


def pattern_of(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> Pattern:
    for sizes, name in ((shape, "shape"), (block, "block")):
        if len(sizes) != 2 or min(sizes) < (name == "block"):
            raise ValueError(f"{name} is {sizes}; expected two sizes of at least {int(name == 'block')}")
    found = _patterns.get(_index_key(row_ptr, col_idx, shape, block), (row_ptr, col_idx))
    if found is not None:
        return found
    if row_ptr.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("row_ptr and col_idx are not known yet, and a CUDA graph is being captured: run this product once before")
    pattern = make_pattern(row_ptr, col_idx, shape, block, str(row_ptr.device))
    remember(row_ptr, col_idx, pattern)
    return pattern


def _copy_indices(pattern: Pattern, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        return torch.tensor(pattern.row_ptr, device=device), torch.tensor(pattern.col_idx, device=device)


def index_tensors(pattern: Pattern, device: torch.device) -> tuple[Tensor, Tensor]:
    """The indices as tensors on a device, one pair a pattern. They stay, but for fakes; a GPU's are made aside."""
    key = ("index", str(device))
    known = pattern.caches.get(key)
    if _torch_modes.makes_fakes(known):
        return _copy_indices(pattern, device)
    if known is None:
        known = _torch_modes.lasting(_copy_indices, pattern, device, aside=device.type == "cuda")
        for t in known:
            t._dynamo_static_input_type = "unguarded"  # its address never changes: CUDA graphs need not copy it
        known[0]._sparse_autotune_pattern = pattern  # a graph of autograd may have the tensors when nobody has the matrix any more
        remember(*known, pattern, own=True)
        pattern.caches[key] = known
    return known
