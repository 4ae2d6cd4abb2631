"""The fast path: `_fast.Runner` goes from arrays to a product that has a plan. No Python code is in between.

NumPy arrays and torch tensors use it. `_torch/quick.py` has what only tensors need.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import _abi, _context
from ._pattern import Kept, alignment

try:
    from . import _fast
except ImportError:
    # Built without Python's headers, or a Python without the stable ABI: everything works, calls cost more.
    _fast = None


def _failed(status: int) -> None:
    """Raises what a run failed with. A wrong argument is left to the full path, which names it; a fault of
    indices is not, since it is returned once, and the run may be an earlier one."""
    _abi.raise_interrupt()
    error = _abi.failure(status)
    if not isinstance(error, _abi.ArgumentError) or error.status in _abi.INDEX_FAULTS:
        raise error


if _fast is not None:
    _fast.library(
        _failed,
        _abi.address(_abi.lib.sat_run),
        _abi.address(_abi.set_threads),
        _abi.address(_abi.get_threads),
    )
    _fast.numpy(np.ndarray)
    _context.on_change(_fast.set_epoch)

_MOST_SCALED = (
    16  # runners of one pattern with an alpha, or a scale, that is not the usual one; the oldest goes first
)
_NUMPY_DTYPES = frozenset(map(np.dtype, ("float32", "float64", "float16")))  # native byte order


class AttentionRunners:
    """Those of attention with one mask and one spec: the result alone, with its LSE, and the gradients."""

    __slots__ = ("backward", "forward", "with_lse")

    def __init__(self) -> None:
        self.forward, self.with_lse, self.backward = (_fast.Runner() for _ in range(3))


def runner(plans: Any, kind: tuple, alpha: float = 1.0, make: Any = None) -> Any:
    """What make() gave for this kind, by default a Runner; None where there is no extension. `plans`: a
    Pattern or a Fixed."""
    if _fast is None:
        return None
    caches = plans.caches
    found = caches.get(kind)
    if found is None:
        fixed = caches.get("fixed")
        found = caches.setdefault(kind, _fixed_runner(*fixed) if fixed else (make or _fast.Runner)())
        if alpha != 1.0:
            scaled = caches.setdefault("scaled", [])
            scaled.append(kind)
            if len(scaled) > _MOST_SCALED:
                caches.pop(scaled.pop(0), None)
        if caches is not plans.caches:  # other values came meanwhile, and closed all runners but this one
            found.close()
    return found


def _fixed_runner(values: Any, count: Any) -> Any:
    """One that serves these values alone, up to this count of writes: None where nobody counts."""
    made = _fast.Runner()
    if count is None or type(count) is int:
        made.fix(values, -1 if count is None else count)
    else:  # a torch that does not tell
        made.close()
    return made


def is_runner(x: Any) -> bool:
    return _fast is not None and type(x) is _fast.Runner


def _run_dynamic(pattern: Any, kind: tuple, values: Any, b: Any) -> Any:
    return runner(pattern, kind).run(values, b, *pattern.indices)


def _run_dynamic_into(pattern: Any, kind: tuple, values: Any, b: Any, out: Any) -> Any:
    return runner(pattern, kind).into(values, b, *pattern.indices, out)


def _adopt_dynamic(matrix: Any) -> None:
    """The same of a matrix that is made anew at each step: a runner is looked for when it is asked."""
    pattern = matrix._pattern
    right, left = ((matrix._transposed, left, 0, 1.0, False) for left in (False, True))
    matrix._runner, matrix._into = (
        partial(_run_dynamic, pattern, right),
        partial(_run_dynamic_into, pattern, right),
    )
    matrix._left_runner = partial(_run_dynamic, pattern, left)
    matrix._left_into = partial(_run_dynamic_into, pattern, left)


def adopt(matrix: Any) -> None:
    """Gives a matrix the runners of its plain products."""
    if _fast is not None and matrix.is_dynamic:
        _adopt_dynamic(matrix)
    elif _fast is not None:
        plans, transposed = matrix._plans, matrix._transposed
        matrix._adopted = plans.caches
        right, left = (runner(plans, (transposed, left, 0, 1.0, False)) for left in (False, True))
        matrix._runner, matrix._into = right.run, right.into
        matrix._left_runner, matrix._left_into = left.run, left.into


def serves(*arrays: Any, indices: tuple = ()) -> bool:
    """Whether a runner may serve these: plain arrays of NumPy, or plain tensors, of dtypes that it knows."""
    if _fast is None:
        return False
    if type(arrays[0]) is np.ndarray:
        known = all(type(x) is np.ndarray and x.dtype in _NUMPY_DTYPES for x in arrays)
        return known and all(type(x) is np.ndarray for x in indices)
    return install_torch is not None and all(type(x) in torch_types for x in (*arrays, *indices))


torch_types: tuple = ()
install_torch: Any = None


def lists_among(inputs: tuple, results: tuple) -> list[tuple[int, Any]]:
    """A bias, offsets and indices, of whose alignment a plan asks nothing, with their places."""
    last = len(inputs) - (not results)
    return [(i, x) for i, x in enumerate(inputs[:last]) if i > 1 and x.ndim == 1]


def install(quick: Any, inputs: tuple, results: tuple, made: Kept | None) -> None:
    """Adds what an operation ran by, so that the next one like it is quick. No results: the last input is the
    result. What cannot be added goes back to its pattern with the last reference to it."""
    if made is None:
        return
    if type(inputs[0]) is not np.ndarray:
        install_torch(quick, inputs, results, made)
        return
    aligned = [alignment(x.__array_interface__["data"][0], "cpu") for x in (*inputs, *results)]
    for i, x in lists_among(inputs, results):
        aligned[i] = x.itemsize
    makers = tuple((np.empty, (x.shape, x.dtype)) for x in results)
    quick.add(inputs, tuple(aligned), makers, made.stream, _abi.get_threads(), 0, made.plan.handle, made)
