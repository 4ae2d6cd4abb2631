"""Indices of others: brought to host memory, and looked at before anything follows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import host


def host_indices(x: Any, name: str) -> np.ndarray:
    """Indices as a new int32 or int64 array in host memory, from whatever they came in."""
    given, x = x, host(x, name)
    if x.ndim != 1:
        raise ValueError(
            f"{name} is a {type(given).__name__} of {x.ndim} dimensions; expected 1, of whole numbers"
        )
    if x.size == 0 and x.dtype.kind == "f":
        x = x.astype(np.int64)  # an empty list
    if x.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {x.dtype}; expected whole numbers")
    if x.dtype.itemsize > 4 and x.dtype.kind == "u" and x.size and int(x.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds {int(x.max())}, which does not fit into 64 bits with a sign")
    return np.array(x, dtype=np.int32 if x.dtype == np.int32 else np.int64, order="C")


def _outside(x: np.ndarray, size: int, name: str) -> None:
    if x.size and (int(x.min()) < 0 or int(x.max()) >= size):
        raise ValueError(f"{name} holds {int(x.min())} to {int(x.max())}; expected 0 to {size - 1}")


def check_indices(
    indptr: Any,
    indices: Any,
    grid: tuple[int, int],
    stored: int,
    names: tuple[str, str],
) -> tuple[np.ndarray, np.ndarray]:
    """Compressed rows in host memory, that end inside their arrays: before code that trusts them reads
    them."""
    indptr, indices = host_indices(indptr, names[0]), host_indices(indices, names[1])
    if len(indptr) != grid[0] + 1:
        raise ValueError(f"{names[0]} has {len(indptr)} entries; expected {grid[0] + 1}")
    if indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"{names[0]} must begin with 0 and never fall")
    if indptr[-1] > min(len(indices), stored):
        raise ValueError(
            f"{names[0]} ends with {indptr[-1]}; expected no more than {min(len(indices), stored)}, which "
            "are stored"
        )
    indices = indices[: indptr[-1]]
    _outside(indices, grid[1], names[1])
    return indptr, indices


def check_scipy(x: Any, name: str = "x") -> None:
    """SciPy's own code does not look where the indices of a matrix point, and they can be changed at any
    time."""
    if len(x.shape) != 2:
        raise ValueError(f"{name} has {len(x.shape)} dimensions; expected 2")
    rows, cols = x.shape
    names = f"{name}.indptr", f"{name}.indices"
    if x.format == "bsr":
        check_indices(
            x.indptr, x.indices, (rows // x.blocksize[0], cols // x.blocksize[1]), x.data.shape[0], names
        )
    elif x.format in ("csr", "csc"):
        check_indices(
            x.indptr, x.indices, (rows, cols) if x.format == "csr" else (cols, rows), x.data.shape[0], names
        )
    elif x.format == "coo":
        _outside(np.asarray(x.row), rows, f"{name}.row")
        _outside(np.asarray(x.col), cols, f"{name}.col")
