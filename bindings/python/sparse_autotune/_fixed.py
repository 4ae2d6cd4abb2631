"""Plans of a matrix whose values are fixed.

Such a plan may hold the values in a form of its own (dense, padded, packed), converted once instead of at
each call. So it belongs to one matrix, and not to the pattern, which other matrices share."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from . import _abi, _arrays, _context, _quick
from ._pattern import MOST_PLANS, Pattern, Plan, Problem, keep_for_graphs, names_of, plan_key

MOST_COPIES = 8  # plans of one matrix that hold converted values, and as many more in CUDA graphs


def _not_counted(_values: Any) -> int | None:
    return None


# Set by _torch.quick once torch is there.
count_of: Any = _not_counted  # torch's count of writes to a tensor; None where nobody counts
stream_of: Any = None  # torch's stream of this address, or None
is_done: Any = None  # whether all that is queued on it is done


class Stamp:
    """What a plan keeps of the values that it took in, so that it does not hold those."""

    __slots__ = ("pointer",)

    def __init__(self, pointer: int):
        self.pointer = pointer


class Snapshot:
    """Values as plans took them in: which array, where it is, and torch's count of writes to it.

    It holds the memory, too, so that other values cannot come to the same address unseen.
    """

    __slots__ = ("caches", "count", "kind", "memory", "stamp", "values")

    def __init__(self, values: Any, pointer: int):
        self.values, self.stamp, self.count = values, Stamp(pointer), count_of(values)
        self.memory = values.untyped_storage() if hasattr(values, "untyped_storage") else values
        self.kind = type(values), getattr(values, "dtype", None), getattr(values, "device", None)
        self.renew_caches()

    def renew_caches(self) -> None:
        """Lets go of the runners, whose plans go back to their list."""
        old = getattr(self, "caches", {})
        self.caches: dict[Any, Any] = {"fixed": (self.values, self.count)}
        close(old)

    def matches(self, values: Any, pointer: int) -> bool:
        return self.values is values and self.stamp.pointer == pointer and self.count == count_of(values)


def close(caches: dict) -> None:
    """Whoever still has these caches finds no plan in them, and does not hold the values."""
    runners = [x for x in list(caches.values()) if _quick.is_runner(x)]
    caches.clear()
    for runner in runners:
        runner.close()


# by address and pattern, for operators, which get tensors alone
_known: weakref.WeakValueDictionary[tuple[int, int], Fixed] = weakref.WeakValueDictionary()


def find(pointer: int, pattern: Pattern) -> Fixed | None:
    return _known.get((pointer, id(pattern))) if _known else None


def of(pattern: Pattern, values: Any) -> Fixed:
    """The plans of these fixed values: those of another matrix with the very same ones, or new ones."""
    pointer = _arrays.describe(values, "values").pointer
    found = find(pointer, pattern)
    return found if found is not None and found.snapshot.values is values else Fixed(pattern, values, pointer)


class Fixed:
    """Has the plans of one matrix, or of several that share pattern and values, such as a transpose.

    A product first asks `follow` for the snapshot of its values, then takes a plan for that snapshot. A
    plan that took in another one is refreshed first. Beyond MOST_COPIES the pattern's plans serve, which
    hold nothing."""

    fixed_values = True

    def __init__(self, pattern: Pattern, values: Any, pointer: int):
        self.pattern = pattern
        self._lock = threading.Lock()
        self._free: dict[tuple, list[Plan]] = {}
        self._first: dict[tuple, Plan] = {}
        self._copies: weakref.WeakSet[Plan] = weakref.WeakSet()
        self._graphs = 0  # plans that CUDA graphs have
        self._take_in(Snapshot(values, pointer))

    @property
    def caches(self) -> dict[Any, Any]:
        return self.snapshot.caches

    # ---- values ----

    def follow(self, values: Any, pointer: int) -> Snapshot:
        """The snapshot of these values: a new one where they are others, or were written to."""
        now = self.snapshot
        return now if now.matches(values, pointer) else self._take_in(Snapshot(values, pointer))

    def refresh(self, values: Any) -> None:
        """For writes that nobody counts. Plans convert the values when they run next, those of graphs now."""
        x = _arrays.describe(values, "values")
        snapshot = self._take_in(Snapshot(values, x.pointer))
        if self._graphs and not _arrays.is_capturing(x):
            self._refresh_graphs(snapshot, _arrays.stream_of(x))

    def _take_in(self, snapshot: Snapshot) -> Snapshot:
        with self._lock:
            old, self.snapshot = getattr(self, "snapshot", None), snapshot
            if old is not None and old.kind != snapshot.kind:
                self._first.clear()  # no product of the new ones needs these plans
                self._free.clear()
        if old is not None:
            close(old.caches)
            key = (old.stamp.pointer, id(self.pattern))
            if _known.get(key) is self:
                _known.pop(key, None)
        _known[snapshot.stamp.pointer, id(self.pattern)] = self
        return snapshot

    # ---- plans ----

    def take(
        self,
        device: str,
        problem: Problem,
        stream: int,
        threads: int,
        capturing: bool,
        snapshot: Snapshot,
    ) -> tuple[tuple, Plan]:
        """As Pattern.take: a plan that holds what the snapshot does."""
        first = plan_key(device, problem, threads)
        key = (*first, stream, capturing)
        if self._graphs and not capturing:
            self._refresh_graphs(snapshot, stream)
        plan = self._for_graph(key, snapshot) if capturing else self._idle(key)
        if plan is None and self._has_room(capturing):
            plan = self._make(first, device, problem, threads, capturing)
            if capturing:  # the graph itself converts the values: nothing may be queued beside it
                plan.stamp = snapshot.stamp
        if plan is None:
            return self.pattern.take(device, problem.with_changing_values(), stream, threads, capturing)
        if plan.stamp is not snapshot.stamp:
            plan.stamp = None
            with _abi.openmp_threads(threads):
                _refresh(plan, snapshot.stamp, stream, problem)
            plan.stream = None if device == "cpu" or stream_of is None else stream_of(device, stream)
        return key, plan

    def give_back(self, key: tuple, plan: Plan) -> None:
        if not key[2].has_fixed_values():
            self.pattern.give_back(key, plan)
        elif key[:-2] in self._first:
            self._free.setdefault(key, []).append(plan)

    def _idle(self, key: tuple) -> Plan | None:
        try:
            return self._free[key].pop()
        except (KeyError, IndexError):
            return None

    def _has_room(self, capturing: bool) -> bool:
        if capturing:
            return self._graphs < MOST_COPIES
        if len(self._copies) >= MOST_COPIES or len(self._first) >= MOST_PLANS:
            self._drop_outdated()
        return len(self._copies) < MOST_COPIES and len(self._first) < MOST_PLANS

    def _drop_outdated(self) -> None:
        """Plans of another effort, or of before a variant was registered."""
        now = _context.epoch()
        with self._lock:
            for plans in (self._first, self._free):
                for key in [k for k in plans if k[1] != now]:
                    del plans[key]
        self.snapshot.renew_caches()

    def _make(self, first: tuple, device: str, problem: Problem, threads: int, capturing: bool) -> Plan:
        model = self._first.get(first)
        with _abi.openmp_threads(threads):
            plan = (
                model.dup()
                if model is not None
                else self.pattern.plan(device, problem, _context.effort_of_captures() if capturing else None)
            )
        with self._lock:
            self._first.setdefault(first, plan)
            if capturing:
                self._graphs += 1
                keep_for_graphs(plan)
            elif plan.info().workspace_bytes:
                self._copies.add(plan)
        return plan

    # ---- CUDA graphs ----

    def _for_graph(self, key: tuple, snapshot: Snapshot) -> Plan | None:
        """A plan that holds the values already: one of earlier graphs, or one that ran before and is the
        graph's from now on. What it ran is done before the graph is: on the same stream, or on one where all
        is done by now."""
        for plan in list(self._free.get(key, ())):
            if plan.stamp is snapshot.stamp and _taken(plan, self._free[key]):
                return plan
        if not self._has_room(True):
            return None
        snapshot.renew_caches()
        for other, plans in list(self._free.items()):
            if other[:-2] != key[:-2] or other[-1]:
                continue
            for plan in list(plans):
                done = plan.stamp is snapshot.stamp and (other[-2] == key[-2] or _is_done(plan.stream))
                if done and _taken(plan, plans):
                    self._copies.discard(plan)
                    self._graphs += 1
                    keep_for_graphs(plan)
                    return plan
        return None

    def _refresh_graphs(self, snapshot: Snapshot, stream: int) -> None:
        """Graphs read values where they were captured; what was written there goes into their plans, too."""
        for key, plans in list(self._free.items()):
            for plan in list(plans) if key[-1] else ():
                old, new = plan.stamp, snapshot.stamp
                if old is not new and old is not None and old.pointer == new.pointer:
                    _refresh(plan, new, stream, key[2])


def _refresh(plan: Plan, stamp: Stamp, stream: int, problem: Problem) -> None:
    status = _abi.lib.sat_plan_refresh(plan.handle, stamp.pointer or None, stream or None)
    _abi.check(status, names_of(problem))
    plan.stamp = stamp


def _taken(plan: Plan, plans: list[Plan]) -> bool:
    """Takes it out of a list, unless another thread was quicker."""
    try:
        plans.remove(plan)
    except ValueError:
        return False
    return True


def _is_done(stream: Any) -> bool:
    """Asked by another thread, since to ask ends a capture of this one."""
    return stream is not None and _context._aside(is_done, stream) is True
