"""Patterns and plans: where the blocks are, and everything that was made ready for them.

A pattern is validated once and shared by a matrix, its transpose, its gradients and its copies on other
devices.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np

from . import _abi, _context

MOST_PLANS = 256  # of one pattern; the oldest problem goes first
_kept_for_graphs: list[Plan] = []  # a CUDA graph may replay at any later time, whatever Python still knows


class Plan:
    """A sat_plan. It serves one caller and one stream at a time: who runs it has taken it out of its
    pattern's list."""

    __slots__ = ("__weakref__", "direct", "handle", "pattern", "stamp", "stream")

    def __init__(self, handle: int, pattern: int | None):
        self.handle, self.pattern = handle, pattern
        self.stamp: Any = None  # fixed values: which ones it took in, and on which of torch's streams
        self.stream: Any = None
        self.direct: Any = ...  # attention: what calls torch's own without a copy, or None; not known yet

    def dup(self) -> Plan:
        copy = ctypes.c_void_p()
        _abi.check(_abi.lib.sat_plan_dup(self.handle, ctypes.byref(copy)))
        return Plan(copy.value, self.pattern)

    def info(self) -> _abi.PlanInfo:
        info = _abi.PlanInfo()
        _abi.check(_abi.lib.sat_plan_get_info(self.handle, ctypes.byref(info)))
        return info

    def __del__(self, free=_abi.lib.sat_plan_free, ending=_abi.ending):
        if not ending:  # else memory and driver go with the process, in an order of their own
            free(self.handle)


class Kept:
    """A plan that whoever holds this may run, on that stream with so many threads. It goes back to its
    pattern, or to the Fixed that has it, once nobody does."""

    __slots__ = ("key", "pattern", "plan", "stream", "threads")

    def __init__(self, pattern: Any, key: tuple, plan: Plan, stream: int, threads: int):
        self.pattern, self.key, self.plan, self.stream, self.threads = (
            weakref.ref(pattern),
            key,
            plan,
            stream,
            threads,
        )

    @property
    def function(self) -> Any:
        """What computes the result instead of the plan, or None."""
        return None if self.plan.direct is ... else self.plan.direct

    def __del__(self) -> None:
        pattern = self.pattern()
        if pattern is not None:
            pattern.give_back(self.key, self.plan)


def alignment(pointer: int, device: str) -> int:
    """Bytes that a pointer is a multiple of, up to the most that any variant asks for, or on the CPU that
    every allocator gives."""
    bits = pointer | (16 if device == "cpu" else 128)
    return bits & -bits


def _attention_struct(fields: tuple) -> _abi.Attention:
    """Six plain fields, then where the heads of each operand are; then, where there are options, the size of
    values, the soft cap and whether there are sinks."""
    strides = [x for x in fields[6:] if isinstance(x, tuple)]
    made = _abi.Attention(*fields[:6], *(_abi.Heads(*x) for x in strides))
    for name, x in zip(("value_dim", "softcap", "sinks"), fields[6 + len(strides) :]):
        setattr(made, name, x)
    return made


def percent_sparse(density: float) -> str:
    """As "87.5 % sparse", with as many digits as tell a little from nothing."""
    for digits in range(1, 16):
        text = f"{100 * (1 - density):.{digits}f}"
        if 0 < float(text) < 100 or density in (0, 1):
            break
    return f"{text} % sparse"


_STRUCTS = {
    "a": lambda x: _abi.Layout(*x),
    "b": lambda x: _abi.Layout(*x),
    "c": lambda x: _abi.Layout(*x),
    "matmul": lambda x: _abi.Matmul(*x),  # transposed, with a bias, activation; the last may be left off
    "attention": _attention_struct,
    "grouped": lambda x: _abi.Grouped(*x),  # groups, type of the offsets, with a bias, activation
}


class Problem:
    """A problem as the library takes it; also a key: all that a plan depends on but its stream."""

    __slots__ = ("_hash", "_key", "struct")

    def __init__(self, **fields: Any):
        self.struct = s = _abi.Problem(batch=1, alpha=1.0)
        for name, value in fields.items():
            setattr(s, name, _STRUCTS[name](value) if name in _STRUCTS else value)
        # an array's stride of 0 is meant: expand() and broadcast_to() make such
        s.flags |= _abi.ALLOW_BROADCAST
        self._key = tuple(sorted(fields.items()))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Problem) and self._key == other._key)

    def has_fixed_values(self) -> bool:
        return bool(self.struct.flags & _abi.FIXED_VALUES)

    def with_changing_values(self) -> Problem:
        fields = dict(self._key)
        return problem_of(**{**fields, "flags": fields["flags"] & ~_abi.FIXED_VALUES})


_problems: dict[tuple, Problem] = {}


def problem_of(**fields: Any) -> Problem:
    """A Problem, made once for the same fields."""
    key = tuple(fields.items())
    found = _problems.get(key)
    if found is None:
        if len(_problems) >= 4096:
            _problems.clear()
        found = _problems[key] = Problem(**fields)
    return found


def plan_key(device: str, problem: Problem, threads: int) -> tuple:
    """What plans that can stand in for each other have in common."""
    return device, _context.epoch(), problem, threads or (_abi.get_threads() if device == "cpu" else 0)


def keep_for_graphs(plan: Plan) -> None:
    _kept_for_graphs.append(plan)


def grid_of(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """Block rows and block columns."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """array_equal, which takes longer than a small product does."""
    return a.tobytes() == b.tobytes() if a.dtype == b.dtype and a.nbytes < 1 << 15 else np.array_equal(a, b)


class Plans:
    """Plans of problems, and what others keep with them. Of these problems none has a pattern; `Pattern` has
    the plans of those that do."""

    fixed_values = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple, list[Plan]] = {}
        self._first: dict[tuple, Plan] = {}
        self.caches: dict[Any, Any] = {}  # what others keep here: torch tensors, runners, pictures

    def handle(self, device: str) -> int | None:
        return None

    def take(
        self,
        device: str,
        problem: Problem,
        stream: int,
        threads: int,
        capturing: bool,
    ) -> tuple[tuple, Plan]:
        """A plan for this call, that nobody else holds, and the key under which it is given back."""
        first = plan_key(device, problem, threads)
        key = (*first, stream, capturing)
        free = self._free.get(key)
        if free:
            try:
                return key, free.pop()
            except IndexError:  # another thread was quicker
                pass
        model = self._first.get(first)
        with _abi.openmp_threads(threads):
            plan = (
                model.dup()
                if model is not None
                else self.plan(device, problem, _context.effort_of_captures() if capturing else None)
            )
        with self._lock:
            self._first.setdefault(first, plan)
            if capturing:
                keep_for_graphs(plan)
            while len(self._first) > MOST_PLANS:
                oldest = next(iter(self._first))
                del self._first[oldest]
                for other in [k for k in self._free if k[: len(oldest)] == oldest]:
                    del self._free[other]
        return key, plan

    def give_back(self, key: tuple, plan: Plan) -> None:
        if key[:-2] in self._first:  # else it is one of too many
            self._free.setdefault(key, []).append(plan)

    def plan(self, device: str, problem: Problem, effort: str | None = None) -> Plan:
        """A new plan; races the problem if that is what the effort allows and nobody did yet."""
        context = _context.get(device, _abi.EFFORTS[effort] if effort else None)
        context.warn_ignored()
        pattern, handle = self.handle(device), ctypes.c_void_p()
        _abi.check(
            _abi.lib.sat_plan_create(
                context.handle, pattern, ctypes.byref(problem.struct), ctypes.byref(handle)
            ),
            names_of(problem),
        )
        return Plan(handle.value, pattern)


class Patterned(Plans):
    """Plans of problems with a pattern of the library's, one a device."""

    def __init__(self, shape: tuple[int, int], block: tuple[int, int]):
        super().__init__()
        self.shape, self.block = shape, block
        self._handles: dict[str, int] = {}

    @property
    def grid(self) -> tuple[int, int]:
        return grid_of(self.shape, self.block)

    def handle(self, device: str) -> int:
        found = self._handles.get(device)
        if found is None:
            made = self._make(device)
            with self._lock:
                found = self._handles.setdefault(device, made)
            if found != made:
                _abi.lib.sat_pattern_free(made)
        return found

    def _make(self, device: str) -> int:
        raise NotImplementedError

    def __del__(self, free=_abi.lib.sat_pattern_free, ending=_abi.ending):
        for handle in () if ending else getattr(self, "_handles", {}).values():
            free(handle)  # safe while plans made from it live

    def view(self) -> _abi.PatternView:
        view = _abi.PatternView()
        device = next(iter(self._handles))
        _abi.check(_abi.lib.sat_pattern_get(self._handles[device], ctypes.byref(view)))
        return view


class Pattern(Patterned):
    """The indices of a block-sparse matrix. Immutable. A mask of attention may have offsets of packed queries
    and keys.

    It has the plans of all matrices with these indices, but for those whose values are fixed: they have a
    `Fixed` of their own. Whoever takes the plans of a product takes either."""

    indices = ()  # those that each run brings: of a DynamicPattern

    def __init__(
        self,
        row_ptr: np.ndarray,
        col_idx: np.ndarray,
        shape: tuple[int, int],
        block: tuple[int, int],
        device: str = "cpu",
        offsets: tuple = (),
    ):
        super().__init__(shape, block)
        self.row_ptr, self.col_idx, self.offsets = row_ptr, col_idx, offsets
        for array in (row_ptr, col_idx, *offsets):
            array.setflags(write=False)
        self.handle(device)

    # A copy shares what never changes; a pickled one is validated again.
    def __deepcopy__(self, _memo: dict) -> Pattern:
        return self

    def __reduce__(self) -> tuple:
        return Pattern, (
            np.array(self.row_ptr),
            np.array(self.col_idx),
            self.shape,
            self.block,
            "cpu",
            tuple(map(np.array, self.offsets)),
        )

    @property
    def pattern(self) -> Pattern:
        return self

    def like(self, x: Any) -> Pattern:
        """For operations on x: as a DynamicPattern has it, whose indices may have to be tensors."""
        return self

    @property
    def kind(self) -> Pattern:
        """What has the plans: dynamic patterns of one kind share theirs."""
        return self

    @property
    def stored_blocks(self) -> int:
        return len(self.col_idx)

    def same_indices(self, row_ptr: np.ndarray, col_idx: np.ndarray) -> bool:
        return _same(self.row_ptr, row_ptr) and _same(self.col_idx, col_idx)

    def _make(self, device: str) -> int:
        bsr = _abi.Bsr(
            rows=self.shape[0],
            cols=self.shape[1],
            block_rows=self.block[0],
            block_cols=self.block[1],
            stored_blocks=len(self.col_idx),
            index_type=_abi.I32 if self.row_ptr.dtype.itemsize == 4 else _abi.I64,
            row_ptr=self.row_ptr.ctypes.data,
            col_idx=self.col_idx.ctypes.data if len(self.col_idx) else None,
        )
        if self.offsets:
            bsr.sequences = len(self.offsets[0]) - 1
            bsr.q_offsets, bsr.kv_offsets = (x.ctypes.data for x in self.offsets)
        handle = ctypes.c_void_p()
        _abi.check(
            _abi.lib.sat_pattern_create(_context.get(device).handle, ctypes.byref(bsr), ctypes.byref(handle))
        )
        return handle.value


# What Python calls what the library's messages name.
_NAMES = {"b": "B", "c": "out", "values": "A", "n": "B"}
ATTENTION_NAMES = {
    "do": "the gradient",
    "o": "the result",
    "dim": "q's head size",
    "value_dim": "v's head size",
    "heads": "q's number of heads",
    "kv_heads": "k's number of heads",
    "batch": "q's batch",
    "alpha": "scale",
}
_NAMES_OF = {
    _abi.ATTENTION: ATTENTION_NAMES,
    _abi.ATTENTION_BACKWARD: ATTENTION_NAMES,
    _abi.GROUPED: {"y": "out"},
    _abi.GROUPED_WEIGHTS: {"w": "out"},
}


def names_of(problem: Problem) -> dict[str, str]:
    return _NAMES_OF.get(problem.struct.op, _NAMES)


def launch(
    plan: Plan,
    inputs: tuple,
    outputs: tuple,
    stream: int,
    threads: int,
    names: dict[str, str] | None = None,
) -> None:
    """Runs a plan that the caller has taken, with so many OpenMP threads (0: as they are set)."""
    n, m = len(inputs), len(outputs)
    read, written = (ctypes.c_void_p * n)(*inputs), (ctypes.c_void_p * m)(*outputs)
    with _abi.openmp_threads(threads):
        _abi.check(_abi.lib.sat_run(plan.handle, read, n, written, m, stream or None), names or _NAMES)
