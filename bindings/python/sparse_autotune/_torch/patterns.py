"""Patterns by their index tensors.

torch's operators get nothing of a matrix but tensors. They find its pattern by the storages of row_ptr and
col_idx, and see whether those were written to since the pattern was made.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .. import _abi
from .._dynamic import AnyPattern
from .._matrix import make_pattern
from .._pattern import Pattern
from .._quick import _fast
from . import modes, private
from .private import storage_id, version_of

CHECK_CALLS = 16  # a GPU's indices are compared with every so many calls,
CHECK_SECONDS = 0.2  # and where the last comparison is older than this
_LATE = (
    "row_ptr, col_idx or a mask was written to in a way that torch does not count (a collective, DLPack, "
    ".data), and a product after that was computed with what it held before; later ones take what it holds "
    "now. After such a write call torch.autograd.graph.increment_version(tensor)"
)
_LAST = (
    "row_ptr, col_idx or a mask was written to in a way that torch does not count (a collective, DLPack, "
    ".data), which no call has found yet: products after that write, if there were any, and replays of CUDA "
    "graphs were computed with what it held before. After such a write call "
    "torch.autograd.graph.increment_version(tensor), and capture graphs again"
)


def in_host_memory(t: Tensor) -> bool:
    return t.is_cpu


def _holds(tensors: tuple, arrays: tuple) -> bool:
    """Whether tensors in host memory hold what these arrays do."""
    same = None if _fast is None else _fast.holds(*tensors, *arrays)
    return all(np.array_equal(t.numpy(), a) for t, a in zip(tensors, arrays)) if same is None else same


class Look:
    """Copies of a device's index tensors in host memory, and what they should hold. The copies arrive when
    the stream gets there."""

    def __init__(self, arrays: tuple, pinned: bool) -> None:
        # In this thread it may be a memory pool that pinned memory comes from (torch 2.11), and goes back to.
        *copies, came = modes.lasting(_host_copies, (*arrays, np.zeros(1, np.int64)), pinned, aside=pinned)
        self.arrays, self.copies, self.reported = arrays, tuple(copies), False
        # A count that follows the copies tells whether they are there. An event would tell, too, but asking
        # one ends a capture that is under way.
        self._queued, self._came, self._device = 0, came if pinned else None, None

    def queue(self, tensors: tuple) -> None:
        for copy, t in zip(self.copies, tensors):
            copy.copy_(t, non_blocking=True)
        self._queued, self._device = self._queued + 1, tensors[0].device
        if self._came is not None:
            self._came.copy_(
                torch.full((1,), self._queued, dtype=torch.int64, device=self._device), non_blocking=True
            )

    def wrong(self) -> bool:
        return not self.reported and not _holds(self.copies, self.arrays)

    def __del__(self, ending=_abi.ending) -> None:
        """torch records an event when pinned memory goes. One that a capture has recorded cannot be asked."""
        if self._came is None or ending:
            return
        if torch.cuda.is_current_stream_capturing():
            _captured.append((*self.copies, self._came))
        else:
            _captured.clear()

    def there(self, wait: bool) -> bool:
        if self._came is None or int(self._came.numpy()[0]) >= self._queued:
            return True
        if wait:
            torch.cuda.synchronize(self._device)
        return wait


_captured: list[tuple] = []  # pinned memory that goes when no graph is being captured
_pending: list[Look] = []  # last copies, which only _settle will compare
_parked: list[tuple] = []  # (a Seen, its tensors) whose last copies could not be queued yet
_seen: weakref.WeakSet[Seen] = weakref.WeakSet()  # those of a device's tensors


def _pend(look: Look) -> None:
    if not look.reported and look not in _pending:
        _pending.append(look)


def _settle(wait: bool = False) -> None:
    """Queues the last copies that had to wait, and warns of what those show that have arrived."""
    global _pending, _parked
    parked, _parked = _parked, []
    for seen, tensors in parked:
        seen.look_last(tensors)
    there = [look for look in _pending if look.there(wait)]
    _pending = [look for look in _pending if look not in there]
    wrong = [look for look in there if look.wrong()]
    for look in wrong:
        look.reported = True
    if wrong:  # once, and last: a filter may turn it into an exception
        warnings.warn(_LAST, RuntimeWarning, stacklevel=2)


def _look_at_all() -> None:
    """As the program ends: warns of writes that no call has found."""
    with contextlib.suppress(RuntimeError):  # a device that answers no more, or a child after a fork
        for seen in list(_seen):
            tensors = tuple(t() for t in seen.tensors)
            if None not in tensors:
                seen.look_last(tensors)
        _settle(wait=True)


atexit.register(_look_at_all)


class Seen:
    """Index tensors as they were when a pattern was made of them. Each call asks whether they still are.

    On the CPU, their contents are compared. On a GPU that would wait for all that is queued there, so torch's
    count of writes is compared instead. The count misses some writes. Therefore a copy into host memory is
    queued in front of a product now and then, and later calls compare it once it has arrived. A last copy is
    made when the owner of the tensors goes, or the program ends. So a wrong product whose result the program
    has read is reported, by the next call or at its end. A CUDA graph keeps the pattern that it was captured
    with; the last copy covers that, too.
    """

    def __init__(self, tensors: tuple, arrays: tuple | None) -> None:
        """`arrays`: what they hold. None: nobody else has these tensors, and the count is enough."""
        self._versions: tuple | None = tuple(map(version_of, tensors))
        self._arrays = None
        if arrays is not None:
            kinds = [str(t.dtype).removeprefix("torch.") for t in tensors]
            self._arrays = tuple(a.astype(kind, copy=False) for a, kind in zip(arrays, kinds))
        self._near = all(map(in_host_memory, tensors))
        self._calls, self._due = 0, time.monotonic() + CHECK_SECONDS
        self._look: Look | None = None
        if self._arrays is not None and not self._near:
            self.tensors = tuple(map(weakref.ref, tensors))
            _seen.add(self)

    def still(self, tensors: tuple) -> bool:
        if self._arrays is not None and self._near:
            return _holds(tensors, self._arrays)
        if _pending or _parked:
            _settle()
        if self._look is not None and self._look.wrong():
            self._look.reported, self._versions = True, None
            raise RuntimeError(_LATE)
        if self._versions != tuple(map(version_of, tensors)):
            return False
        if self._arrays is not None:
            self._calls += 1
            if self._calls >= CHECK_CALLS or time.monotonic() >= self._due:
                self._queue_look(tensors)
        return True

    def _queue_look(self, tensors: tuple) -> bool:
        """Queues a copy. False where a graph is being captured, which the copy would become a part of."""
        if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        if self._look is None:
            self._look = Look(self._arrays, tensors[0].is_cuda)
            weakref.finalize(self, _pend, self._look).atexit = False
        self._look.queue(tensors)
        self._calls, self._due = 0, time.monotonic() + CHECK_SECONDS
        return True

    def look_last(self, tensors: tuple) -> None:
        """Queues a last copy of a device's tensors, before their owner lets them go. A later call of any
        product, or the end of the program, warns of what it shows."""
        if self._arrays is None or self._near or private.always_watched:
            return
        if self._versions != tuple(map(version_of, tensors)):
            return
        if modes.watched() or modes.transformed() or not self._queue_look(tensors):
            _parked.append((self, tensors))
        else:
            _pend(self._look)


class Owned:
    """Index tensors with what was seen of them, for the owner of both. They are compared once more before
    they go."""

    __slots__ = ("seen", "tensors")

    def __init__(self, tensors: tuple, seen: Seen) -> None:
        self.tensors, self.seen = tensors, seen

    def still(self) -> bool:
        return self.seen.still(self.tensors)

    def __del__(self, ending=_abi.ending) -> None:
        if not ending:  # then _look_at_all has been here
            with contextlib.suppress(RuntimeError):  # a device that answers no more, or a child after a fork
                self.seen.look_last(self.tensors)
                _settle()


def _host_copies(arrays: tuple, pinned: bool) -> tuple:
    with torch.inference_mode(False):
        copies = (torch.from_numpy(np.array(a)) for a in arrays)
        return tuple(t.pin_memory() if pinned else t for t in copies)


class Known:
    """Patterns by their index tensors. The storages are held weakly: torch cannot use the address of one
    again while it stands here."""

    def __init__(self) -> None:
        self._lock, self._entries, self._most = threading.Lock(), dict[tuple, tuple](), 64

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: tuple, tensors: tuple, pattern: Pattern, seen: Seen, own: bool = False) -> None:
        """For as long as the tensors live and stay as they are. `own`: the pattern holds these tensors, so
        they do not hold the pattern."""
        kept: Callable[[], Pattern | None] = weakref.ref(pattern) if own else lambda: pattern
        entry = tuple(StorageWeakRef(t.untyped_storage()) for t in tensors), seen, kept
        with self._lock:
            self._entries[key] = entry
            if len(self._entries) >= self._most:  # now and then: looking through all of them takes time
                self._entries = {
                    k: e
                    for k, e in self._entries.items()
                    if e[2]() is not None and not any(r.expired() for r in e[0])
                }
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
    """Index tensors that a backward pass needs. autograd sees writes only to the tensors that it saves."""

    def __init__(self, *tensors: Tensor | None) -> None:
        self._tensors, self._given = tensors, [t for t in tensors if t is not None]
        self._versions, self._held = list(map(version_of, self._given)), list(map(_held, self._given))

    def get(self) -> tuple:
        written = private.counts_writes and list(map(version_of, self._given)) != self._versions
        if written or any(
            None not in pair and pair[0] != pair[1] for pair in zip(self._held, map(_held, self._given))
        ):
            raise RuntimeError(
                "indices of a matrix or a mask were changed in place after the call whose gradients are "
                "asked for"
            )
        return self._tensors


def _held(t: Tensor) -> bytes | None:
    """What a tensor in host memory holds; None where modes and traces would see that it is read."""
    if (t.is_cpu or not private.counts_writes) and t.layout is torch.strided and not modes.watched():
        try:
            return (t if t.is_cpu else t.cpu()).numpy().tobytes()
        except RuntimeError:  # fakes and wrappers hold nothing
            pass
    return None


def _place(t: Tensor) -> tuple:
    return storage_id(t), t.storage_offset(), t.dtype, tuple(t.shape), t.stride()


def _index_key(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> tuple:
    return _place(row_ptr), _place(col_idx), shape, block


def remember(row_ptr: Tensor, col_idx: Tensor, pattern: Pattern, own: bool = False) -> Seen:
    """Lets operators find the pattern of these index tensors. `own`: nobody else has them."""
    tensors = row_ptr, col_idx
    seen = Seen(tensors, None if own else (pattern.row_ptr, pattern.col_idx))
    _patterns.add(_index_key(row_ptr, col_idx, pattern.shape, pattern.block), tensors, pattern, seen, own)
    return seen


def forget(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> None:
    """For use after writes that torch may not have counted."""
    _patterns.drop(_index_key(row_ptr, col_idx, shape, block))


def pattern_of(row_ptr: Tensor, col_idx: Tensor, shape: tuple, block: tuple) -> Pattern:
    for sizes, name in ((shape, "shape"), (block, "block")):
        if len(sizes) != 2 or min(sizes) < (name == "block"):
            raise ValueError(f"{name} is {sizes}; expected two sizes of at least {int(name == 'block')}")
    found = _patterns.get(_index_key(row_ptr, col_idx, shape, block), (row_ptr, col_idx))
    if found is not None:
        return found
    if row_ptr.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "row_ptr and col_idx are not known yet, and a CUDA graph is being captured: run this product "
            "once before"
        )
    pattern = make_pattern(row_ptr, col_idx, shape, block, str(row_ptr.device))
    remember(row_ptr, col_idx, pattern)
    return pattern


def _copy_indices(pattern: Pattern, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        return torch.tensor(pattern.row_ptr, device=device), torch.tensor(pattern.col_idx, device=device)


def index_tensors(pattern: AnyPattern, device: torch.device) -> tuple[Tensor, Tensor]:
    """The indices as tensors on a device, one pair a pattern. They stay, but for fakes. Another thread makes
    a GPU's. Those of a dynamic pattern are the caller's."""
    if pattern.indices:
        return pattern.indices
    key = ("index", str(device))
    known = pattern.caches.get(key)
    if modes.makes_fakes(known):
        return _copy_indices(pattern, device)
    if known is None:
        known = modes.lasting(_copy_indices, pattern, device, aside=device.type == "cuda")
        for t in known:
            private.mark_static(t)
        # A graph of autograd may have the tensors when nobody has the matrix any more.
        known[0]._sparse_autotune_pattern = pattern
        remember(*known, pattern, own=True)
        pattern.caches[key] = known
    return known
