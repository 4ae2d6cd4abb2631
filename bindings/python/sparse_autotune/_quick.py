"""The quick way: `_fast.Runner` goes from arrays to a product that is planned already, with no Python code in between."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _abi, _context
from ._pattern import Pattern, alignment

try:
    from . import _fast
except ImportError:  # built without Python's headers, or a Python without the stable ABI: everything works, calls cost more
    _fast = None

if _fast is not None:
    _fast.library(_abi.address(_abi.lib.sat_run), _abi.address(_abi.set_threads), _abi.address(_abi.get_threads))
    _fast.numpy(np.ndarray)
    _context.on_change(_fast.set_epoch)

_MOST_SCALED = 16  # runners of one pattern with an alpha, or a scale, that is not the usual one; the oldest goes first
_NUMPY_DTYPES = frozenset(map(np.dtype, ("float32", "float64", "float16")))  # native byte order


def runner(pattern: Pattern, kind: tuple, alpha: float = 1.0) -> Any:
    if _fast is None:
        return None
    found = pattern.caches.get(kind)
    if found is None:
        found = pattern.caches.setdefault(kind, _fast.Runner())
        if alpha != 1.0:
            scaled = pattern.caches.setdefault("scaled", [])
            scaled.append(kind)
            if len(scaled) > _MOST_SCALED:
                pattern.caches.pop(scaled.pop(0), None)
    return found


def adopt(matrix: Any) -> None:
    """Gives a matrix the runners of its plain products."""
    if _fast is not None:
        pattern, transposed = matrix._pattern, matrix._transposed
        matrix._runner = runner(pattern, (transposed, False, 0, 1.0, False)).run
        matrix._left_runner = runner(pattern, (transposed, True, 0, 1.0, False)).run


def serves_numpy(*arrays: Any) -> bool:
    return _fast is not None and all(type(x) is np.ndarray and x.dtype in _NUMPY_DTYPES for x in arrays)


def install_numpy(quick: Any, inputs: tuple, result: np.ndarray, made: tuple | None) -> None:
    """Adds what a product of NumPy arrays ran by, so that the next one like it is quick."""
    if made is None:
        return
    plan, stream, _ = made
    aligned = [alignment(x.__array_interface__["data"][0], "cpu") for x in (*inputs, result)]
    if len(inputs) == 3:  # a bias, of which a plan asks nothing
        aligned[2] = result.itemsize
    quick.add(inputs, tuple(aligned), np.empty, (result.shape, result.dtype), stream, _abi.get_threads(), 0, plan.handle, plan)
