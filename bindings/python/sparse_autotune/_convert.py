"""Between block-sparse and everything else: dense, CSR, other devices, other libraries."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np

from . import _abi, _arrays, _context
from ._arrays import torch_module
from ._indices import check_indices, check_scipy
from ._matrix import MOST, BsrMatrix, _what
from ._pattern import Pattern

AUTO_BLOCKS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
AUTO_RACES = 5


# ---- indices that change ----


def to_static(a: BsrMatrix) -> BsrMatrix:
    pattern, names = a._pattern, ("row_ptr", "col_idx")
    indices = check_indices(*pattern.now(), pattern.grid, pattern.stored_blocks, names)
    values = a._values if hasattr(a._values, "__getitem__") else np.from_dlpack(a._values)
    made = BsrMatrix(*indices, values[: len(indices[1])], pattern.shape)
    return made.T if a.is_transposed else made


# ---- dense ----


def from_dense(x: Any, block: tuple[int, int], keep: float | None, threshold: float | None) -> tuple:
    if keep is not None and threshold is not None:
        raise ValueError("keep and threshold are both given; expected one of them")
    for name, given in (("keep", keep), ("threshold", threshold)):
        if given is not None and not isinstance(given, numbers.Real):
            raise TypeError(f"{name} is {given!r}; expected a number")
    if keep is not None and not 0 <= keep <= 1:
        raise ValueError(f"keep is {keep}; expected a share from 0 to 1")
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold is {threshold}; expected 0 or more")
    if isinstance(x, (list, tuple)):
        x = _arrays.host(x, "x")
    operand = _arrays.describe(x, "x")
    if len(operand.shape) != 2:
        raise ValueError(f"x has {len(operand.shape)} dimensions; expected 2")
    tiles = _tiles(x if operand.kind != "dlpack" else np.from_dlpack(x), operand, block)
    grid = tuple(tiles.shape[:2])
    if keep is not None:
        norms, largest = _scores(tiles, operand)
        count = round(keep * norms.size)
        mask = np.zeros(norms.size, bool)
        mask[np.lexsort((-largest, -norms))[:count]] = True
        mask = mask.reshape(grid)
    else:
        mask = ~(_host(abs(_wide(tiles, operand)), operand, "max") <= (threshold or 0.0))  # NaN is kept
    rows, cols = np.nonzero(mask)
    row_ptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=grid[0])))).astype(np.int64)
    values = tiles[_index_like(rows, operand), _index_like(cols, operand)]
    return row_ptr, cols.astype(np.int64), values, operand.shape


def _check_room(blocks: int, block: tuple[int, int]) -> None:
    elements = max(blocks, 1) * block[0] * block[1]
    if elements > 2**47:  # more than a process can address
        raise ValueError(
            f"block is {block[0]}x{block[1]}, in which x takes {elements} elements; expected blocks that fit "
            "into memory"
        )


def _tiles(x: Any, operand: _arrays.Operand, block: tuple[int, int]) -> Any:
    """(block rows, block columns, rows, columns) of a dense matrix, padded with zeros."""
    (rows, cols), (br, bc) = operand.shape, block
    gr, gc = -(-rows // br), -(-cols // bc)
    _check_room(gr * gc, block)
    if operand.kind == "torch":
        padded = torch_module().nn.functional.pad(x, (0, gc * bc - cols, 0, gr * br - rows))
        return padded.reshape(gr, br, gc, bc).permute(0, 2, 1, 3)
    module = _arrays.cupy_module() if operand.kind == "cupy" else np
    padded = module.zeros((gr * br, gc * bc), x.dtype)
    padded[:rows, :cols] = x
    return padded.reshape(gr, br, gc, bc).transpose(0, 2, 1, 3)


def _scores(tiles: Any, operand: _arrays.Operand) -> tuple[np.ndarray, np.ndarray]:
    """Of each tile the sum of squares, in float64, and the largest element, for sums beyond that too. NaN
    counts as infinite."""
    wide = tiles.detach().double() if operand.kind == "torch" else tiles.astype("float64")
    with np.errstate(over="ignore"):
        norms = _host(wide**2, operand, "sum")
    found = norms, _host(abs(wide), operand, "max")
    return tuple(np.where(np.isnan(x), np.inf, x).ravel() for x in found)


def _wide(x: Any, operand: _arrays.Operand) -> Any:
    if operand.kind == "torch":
        return x.detach().double() if operand.dtype == _abi.F64 else x.detach().float()
    return x.astype("float64" if operand.dtype == _abi.F64 else "float32")


def _host(x: Any, operand: _arrays.Operand, what: str) -> np.ndarray:
    """The sum or the maximum over each tile, in host memory."""
    if operand.kind == "torch":
        return (x.sum((2, 3)) if what == "sum" else x.flatten(2).amax(2)).cpu().numpy()
    reduced = x.sum((2, 3)) if what == "sum" else x.max((2, 3))
    return reduced.get() if operand.kind == "cupy" else reduced


def _index_like(x: np.ndarray, operand: _arrays.Operand) -> Any:
    if operand.kind == "torch":
        return torch_module().from_numpy(x).to(operand.array.device)
    return _arrays.cupy_module().asarray(x) if operand.kind == "cupy" else x


def _block_rows(pattern: Pattern) -> np.ndarray:
    return np.repeat(np.arange(pattern.grid[0]), np.diff(pattern.row_ptr))


def to_dense(a: BsrMatrix) -> Any:
    a = a.to_static()
    pattern, values = a._pattern, a._values
    operand = _arrays.describe(values, "values")
    if operand.kind == "dlpack":
        values = np.from_dlpack(values)
    (gr, gc), (br, bc), (rows, cols) = pattern.grid, pattern.block, pattern.shape
    at = (_index_like(_block_rows(pattern), operand), _index_like(pattern.col_idx.astype(np.int64), operand))
    if operand.kind == "torch":
        tiles = values.new_zeros((gr, gc, br, bc)).index_put(at, values)
        dense = tiles.permute(0, 2, 1, 3).reshape(gr * br, gc * bc)[:rows, :cols]
        return (dense.T if a.is_transposed else dense).contiguous()
    module = _arrays.cupy_module() if operand.kind == "cupy" else np
    tiles = module.zeros((gr, gc, br, bc), values.dtype)
    tiles[at] = values
    dense = tiles.transpose(0, 2, 1, 3).reshape(gr * br, gc * bc)[:rows, :cols]
    return module.ascontiguousarray(dense.T if a.is_transposed else dense)


# ---- CSR ----


def _csr_parts(x: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int], Any]:
    """row pointers, columns, values, shape, and the torch device that the result belongs on."""
    torch = torch_module()
    if torch is not None and isinstance(x, torch.Tensor):
        if x.layout is not torch.sparse_csr:
            raise TypeError(f"x is {_what(x)}; expected a SciPy sparse matrix or a torch.sparse_csr tensor")
        if x.dim() != 2:
            raise ValueError(f"x has {x.dim()} dimensions; expected 2")
        _arrays.dtype_code(x.dtype, "x")
        values = _arrays.host(x.values().float() if x.dtype == torch.bfloat16 else x.values(), "x.values()")
        row_ptr, col_idx = check_indices(
            x.crow_indices(),
            x.col_indices(),
            tuple(x.shape),
            len(values),
            ("x.crow_indices()", "x.col_indices()"),
        )
        return row_ptr, col_idx, values[: len(col_idx)], tuple(x.shape), x
    if not hasattr(x, "tocsr") or not hasattr(x, "format"):
        raise TypeError(f"x is {_what(x)}; expected a SciPy sparse matrix or a torch.sparse_csr tensor")
    check_scipy(x)
    x = x.tocsr()
    check_scipy(x)  # lists of lists may hold any column
    _arrays.dtype_code(x.dtype, "x")
    stored = x.indptr[-1]  # the arrays may be longer
    return x.indptr, x.indices[:stored], x.data[:stored], x.shape, None


def _gather_blocks(parts: tuple, block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row pointers and columns of the blocks that hold something, and for each nonzero the block it is in."""
    indptr, indices, _, shape, _ = parts
    gr, gc = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    rows = np.repeat(np.arange(shape[0], dtype=np.int64), np.diff(indptr))
    code = rows // block[0] * max(gc, 1) + indices.astype(np.int64) // block[1]
    stored, place = np.unique(code, return_inverse=True)
    counts = np.bincount(stored // max(gc, 1), minlength=gr)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), stored % max(gc, 1), place.reshape(-1)


def _build(parts: tuple, block: tuple[int, int]) -> tuple:
    indptr, indices, data, shape, origin = parts
    row_ptr, col_idx, place = _gather_blocks(parts, block)
    _check_room(len(col_idx), block)
    values = np.zeros((len(col_idx), *block), data.dtype)
    rows = np.repeat(np.arange(shape[0], dtype=np.int64), np.diff(indptr))
    at = (place * block[0] + rows % block[0]) * block[1] + indices % block[1]
    np.add.at(values.reshape(-1), at, data)  # an element that is stored twice is the sum
    if origin is not None:
        values = torch_module().from_numpy(values).to(origin.device, origin.dtype)
    return row_ptr, col_idx, values, shape


def check_columns(columns: Any) -> int:
    try:
        size = operator.index(columns)
    except TypeError:
        raise TypeError(f"columns is {columns!r}; expected a whole number") from None
    if not 1 <= size <= MOST:
        raise ValueError(f"columns is {columns!r}; expected at least 1 and no more than 64 bits hold")
    return size


def from_csr(x: Any, block: Any, columns: int) -> tuple:
    parts = _csr_parts(x)
    if block != "auto":
        return _build(parts, block)
    columns = check_columns(columns)
    # Small blocks run at a lower rate, roughly in proportion to their side up to 16; the race decides among
    # the likely ones.
    likely = sorted(
        AUTO_BLOCKS,
        key=lambda side: len(_gather_blocks(parts, (side, side))[1]) * side * side / min(side, 16),
    )
    best, least = None, float("inf")
    for side in sorted(likely[:AUTO_RACES]):
        built = _build(parts, (side, side))
        seconds = _time(BsrMatrix(*built), columns)
        if best is None or seconds < least:
            best, least = built, seconds
    return best


def _time(a: BsrMatrix, columns: int) -> float:
    """Seconds that the best variant takes, by a race or from the cache."""
    from . import _pattern, _products, _race

    operand = _arrays.describe(a._values, "values")
    problem = _products.plain_problem(operand.dtype, columns, align=_pattern.alignment(0, operand.device))
    race = _race.run(a._pattern, operand.device, problem, fresh=False)
    return race.best.seconds if race.best else float("inf")


# ---- elsewhere ----


def move(values: Any, device: Any, dtype: Any) -> Any:
    operand = _arrays.describe(values, "values")
    where = _context.normalise(device) if device is not None else operand.device
    code = _arrays.dtype_code(dtype, "dtype") if dtype is not None else operand.dtype
    name = _abi.DTYPE_NAMES[code]
    if operand.kind == "torch":
        return _on_device(values, where, name)
    if operand.kind == "cupy" and where == "cpu":
        return values.get().astype(name, copy=False)
    if operand.kind == "dlpack":
        values = np.from_dlpack(values)
    if where != operand.device or code == _abi.BF16:
        return _to_framework(values, where, name)
    return values.astype(name, copy=False)


def _on_device(values: Any, where: str, dtype: str) -> Any:
    torch = torch_module()
    if where != "cpu" and int(where.split(":")[1]) >= torch.cuda.device_count():
        raise RuntimeError(f"device is {where!r}; torch finds {torch.cuda.device_count()} GPUs here")
    return values.to(where, getattr(torch, dtype))


def _to_framework(values: Any, where: str, dtype: str) -> Any:
    torch = torch_module() or _arrays._import_or_none("torch")
    if torch is not None:
        return _on_device(torch.as_tensor(values), where, dtype)
    cupy = _arrays._import_or_none("cupy")
    if cupy is None or dtype == "bfloat16":
        raise RuntimeError(
            f"device is {where!r} and dtype {dtype}: moving NumPy values there needs "
            f"torch{'' if dtype == 'bfloat16' else ' or CuPy'}"
        )
    with cupy.cuda.Device(int(where.split(":")[1])):
        return cupy.asarray(values, dtype)


def _whole(a: BsrMatrix, whose: str) -> BsrMatrix:
    """The matrix as others store it: not by a view of its transpose, and in blocks that divide it."""
    a = a.to_static()
    a = contiguous(a) if a.is_transposed else a
    if any(s % b for s, b in zip(a._pattern.shape, a._pattern.block)):
        raise ValueError(
            f"{whose} wants blocks that divide the shape; this matrix is {a.shape[0]}x{a.shape[1]} in blocks "
            f"of {a.block[0]}x{a.block[1]}"
        )
    return a


def to_torch(a: BsrMatrix) -> Any:
    torch = _arrays._import_or_none("torch")
    if torch is None:
        raise RuntimeError("torch is not installed")
    a = _whole(a, "torch.sparse_bsr")
    values = torch.as_tensor(a._values)
    index = [torch.from_numpy(np.array(i)).to(values.device) for i in (a.row_ptr, a.col_idx)]
    invariants = torch.sparse.check_sparse_tensor_invariants
    with invariants(invariants.is_enabled()):  # as it is set; torch warns of a setting that nobody made
        return torch.sparse_bsr_tensor(*index, values, size=a.shape)


def to_scipy(a: BsrMatrix) -> Any:
    sparse = _arrays._import_or_none("scipy.sparse")
    if sparse is None:
        raise RuntimeError("SciPy is not installed")
    a = _whole(a, "SciPy's BSR")
    values = a._values
    if a._torch:
        values = values.detach().cpu().numpy()
    elif hasattr(values, "get"):
        values = values.get()
    return sparse.sparse.bsr_array((values, np.array(a.col_idx), np.array(a.row_ptr)), shape=a.shape)


def transposed(pattern: Pattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """row_ptr and col_idx of the transpose, and where its blocks are stored."""
    rows = _block_rows(pattern)
    order = np.lexsort((rows, pattern.col_idx))
    counts = np.bincount(pattern.col_idx, minlength=pattern.grid[1])
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), rows[order].astype(np.int64), order


def contiguous(a: BsrMatrix) -> BsrMatrix:
    """The transpose, stored as itself."""
    row_ptr, col_idx, order = transposed(a._pattern)
    values = np.from_dlpack(a._values) if not hasattr(a._values, "swapaxes") else a._values
    operand = _arrays.describe(values, "values")
    moved = values[_index_like(order, operand)].swapaxes(1, 2)
    return BsrMatrix(row_ptr, col_idx, moved, a.shape)
