"""Patterns of plain index tensors: torch's operators have no other way to a matrix's pattern than the tensors they are given."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _torch_modes
from ._matrix import make_pattern
from ._pattern import Pattern


class Known:
    """Patterns by their index tensors, whose storages are held weakly: an address cannot be used again while it stands here."""

    def __init__(self) -> None:
        self._lock, self._entries, self._most = threading.Lock(), dict[tuple, tuple](), 64

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: tuple, tensors: tuple, pattern: Pattern, own: bool = False) -> None:
        """For as long as the tensors live and stay as they are. `own`: the pattern keeps these itself, and is not kept for them."""
        kept: Callable[[], Pattern | None] = weakref.ref(pattern) if own else lambda: pattern
        entry = tuple(StorageWeakRef(t.untyped_storage()) for t in tensors), tuple(map(version_of, tensors)), kept
        with self._lock:
            self._entries[key] = entry
            if len(self._entries) >= self._most:  # now and then: looking through all of them takes time
                self._entries = {k: e for k, e in self._entries.items() if e[2]() is not None and not any(r.expired() for r in e[0])}
                self._most = max(64, 2 * len(self._entries))

    def drop(self, key: tuple) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def get(self, key: tuple, tensors: tuple) -> Pattern | None:
        storages, versions, kept = self._entries.get(key, ((), None, None))
        if kept is None or versions != tuple(map(version_of, tensors)) or any(r.expired() for r in storages):
            return None
        return kept()


_patterns = Known()


def version_of(t: Tensor) -> int | bytes:
    """What differs once an index tensor was written to. Torch counts no writes to tensors made in inference mode, so that what those hold
    is compared; but for a GPU's, since reading them would wait for everything that is queued there."""
    if not t.is_inference():
        return t._version
    if t.is_cpu and t.layout is torch.strided:
        try:
            return t.numpy().tobytes()
        except RuntimeError:  # fakes and wrappers, while something is traced, hold nothing
            pass
    return 0


class Unchanged:
    """Index tensors beside those that autograd saves, which looks at the versions of its own only."""

    def __init__(self, *tensors: Tensor | None) -> None:
        self._tensors, self._versions = tensors, self._now(tensors)

    @staticmethod
    def _now(tensors: tuple) -> list[int | bytes]:
        return [version_of(t) for t in tensors if t is not None]

    def get(self) -> tuple:
        if self._now(self._tensors) != self._versions:
            raise RuntimeError("indices of a matrix or a mask were changed in place after the call whose gradients are asked for")
        return self._tensors


def _place(t: Tensor) -> tuple:
    return t.untyped_storage()._cdata, t.storage_offset(), t.dtype, tuple(t.shape), t.stride()


def _index_key(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> tuple:
    return _place(row_ptr), _place(col_idx), shape, block


def remember(row_ptr: Tensor, col_idx: Tensor, pattern: Pattern, own: bool = False) -> None:
    """Lets operators find the pattern of these index tensors."""
    _patterns.add(_index_key(row_ptr, col_idx, pattern.shape, pattern.block), (row_ptr, col_idx), pattern, own)


def forget(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> None:
    """After writes that `version_of` may not see."""
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
