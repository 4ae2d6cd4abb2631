"""Ranks of one job: layers that are cut, checkpoints of them, and ranks that run the same variants.

`ColwiseParallel` and `RowwiseParallel` are for torch's `parallelize_module`, `SavePlanner` and `LoadPlanner`
for torch's distributed checkpoints; docs/guide/many-gpus.md has the whole.

Of `enable`: where ranks tune by themselves they may choose differently: each pays for all races, and results
differ in the last bits between ranks. After `enable` each problem is raced by one rank of those with equal
devices and builds, all of them verify the winner for themselves, and all of them use it. Tuning needs no
collective: it goes through the store that torch.distributed has anyway.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import math
import os
import queue
import sys
import threading
import time
from typing import Any

from . import _abi, _context

# These need torch, which is imported only when they are asked for.
_PLACES = {
    "ColwiseParallel": "_parallel",
    "RowwiseParallel": "_parallel",
    "balance": "_parallel",
    "ExpertParallel": "_experts",
    "LoadPlanner": "_checkpoint",
    "SavePlanner": "_checkpoint",
    "load_patterns": "_checkpoint",
    "load_plain_state_dict": "_checkpoint",
    "plain_state_dict": "_checkpoint",
}
__all__ = ["enable", *_PLACES]

_PAUSES = (0.001, 0.05)  # seconds between looks at the store, the first and the longest

_agreement: _abi.Agreement | None = None  # also keeps its functions alive


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _default_store(torch: Any, group: Any) -> Any:
    from ._torch import private

    store = private.default_store()
    if store is None:
        raise RuntimeError("this torch does not tell its store: give one as store=")
    ranks = "all" if group is None else "-".join(map(str, torch.distributed.get_process_group_ranks(group)))
    name = hashlib.sha256(ranks.encode()).hexdigest()[:16]  # other groups agree on their own
    return torch.distributed.PrefixStore(f"sparse_autotune/{name}", store)


class _Asker:
    """Calls of a store, in a thread of their own: one that never comes back, as where the store's process is
    stopped, costs whoever asked no more than `limit` seconds, and those who ask after that nothing.

    Calls are made one after the other, as a store serves them anyway.
    """

    def __init__(self, limit: float):
        self._limit, self._process, self._began = limit, os.getpid(), math.inf
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="sparse_autotune store").start()

    def _serve(self) -> None:
        while True:
            call, found, done = self._calls.get()
            self._began = time.monotonic()
            try:
                found.append(call())
            except BaseException as error:
                found.append(error)
            self._began = math.inf
            done.set()

    def __call__(self, call: Any) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError("this process was forked, and the store is its parent's")
        if time.monotonic() - self._began > self._limit:
            raise TimeoutError("it has not answered an earlier call yet")
        found: list[Any] = []
        done = threading.Event()
        self._calls.put((call, found, done))
        if not done.wait(self._limit):
            raise TimeoutError(f"it did not answer within {self._limit:g} s")
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]


_reported: set[str] = set()  # once a process


def _report(error: Exception) -> None:
    if str(error) not in _reported and len(_reported) < 10:
        _reported.add(str(error))
        print(f"sparse_autotune: the store of torch.distributed failed: {error}", file=sys.stderr)


def _guarded(call: Any) -> Any:
    """Nothing is raised through the library, which logs a failure and goes on."""

    def guarded(_user, key, argument, to):
        try:
            value = call(key.decode(), argument)
        except BaseException as error:
            if isinstance(error, Exception):
                _report(error)
            else:
                _abi.keep_interrupt(error)
            return _abi.IO
        if value is None:
            return _abi.NOT_FOUND
        if not value or len(value) >= _abi.AGREED_SIZE:
            return _abi.BAD_FORMAT
        ctypes.memmove(to, value + b"\0", len(value) + 1)
        return 0

    return guarded


def _functions(store: Any, wait: float) -> tuple[Any, Any]:
    """get and put over a store of torch's. A store serves one call at a time, and others wait for it: so
    nothing waits inside of it."""
    ask = _Asker(wait)

    def get(key: str, seconds: float) -> bytes | None:
        end, pause = time.monotonic() + seconds, _PAUSES[0]
        while not ask(lambda: store.check([key])):
            left = end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(2 * pause, _PAUSES[1])
        return bytes(ask(lambda: store.get(key)))

    def put(key: str, desired: bytes) -> bytes | None:
        return bytes(ask(lambda: store.compare_set(key, "", desired.decode())))

    return _guarded(get), _guarded(put)


def enable(
    group: Any = None,
    *,
    store: Any = None,
    rank: int | None = None,
    world: int | None = None,
    wait: float = 60.0,
) -> None:
    """From here on plans of this process agree with those of the other ranks.

    To be called on every rank, once, after ``torch.distributed.init_process_group`` and before the first
    product. It is no collective: a rank that is late, dead, or never calls it costs the others at most `wait`
    seconds a problem, and what they agree on then is an estimate. Nor does a store that stops answering cost
    more than `wait` seconds, once: each rank then decides by itself.

    - ``group``: the ranks that agree; by default all of them.
    - ``store``, ``rank``, ``world``: in place of torch.distributed's own, where there is no process group.
      One store, or prefix, is for one group.

    Under effort "off" ranks estimate by themselves, and under "pinned" each follows its own cache; under
    "cached" a rank answers for the others by what is in its cache, and estimates alone. Register variants
    before. Ranks that have other threads, devices, builds or libraries agree apart from each other. Each
    rank's cache keeps what was agreed on, so the next job races nothing. Results of different winners may
    differ in the last bits, so where a result must be the same from job to job, ship a cache and pin it
    (docs/guide/production.md).
    """
    global _agreement
    import torch

    if not (isinstance(wait, (int, float)) and math.isfinite(wait) and wait > 0):
        raise ValueError(f"wait is {wait!r}; expected seconds above 0")
    if store is None or rank is None or world is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise RuntimeError(
                "torch.distributed is not initialised: call init_process_group first, or give store, rank "
                "and world"
            )
        rank = torch.distributed.get_rank(group) if rank is None else rank
        world = torch.distributed.get_world_size(group) if world is None else world
        store = _default_store(torch, group) if store is None else store
    if not (isinstance(world, int) and 1 <= world <= 1 << 20):
        raise ValueError(f"world is {world!r}; expected 1 to {1 << 20}")
    if not (isinstance(rank, int) and 0 <= rank < world):
        raise ValueError(f"rank is {rank!r}; expected 0 to {world - 1}: is this process in the group?")
    if _agreement is not None:
        raise RuntimeError("this process agrees with other ranks already")
    get, put = _functions(store, wait)
    made = _abi.Agreement(
        rank=rank, world=world, wait_seconds=wait, get=_abi.GET_FN(get), put=_abi.PUT_FN(put)
    )
    _context.agree(made)
    _agreement = made
