"""Patterns whose indices change: arrays of the caller's, which products read where they are when they run.

Nothing is kept by the address of an array. Each run is given the indices, and its plan is that of a `Kind`,
which all matrices of one shape, block and capacity share. So new arrays at each step, arrays that are
rewritten and arrays that come to the address of others are all the same to it.
"""

from __future__ import annotations

import ctypes
import math
import numbers
import threading
import warnings
from typing import Any

import numpy as np

from . import _abi, _arrays, _context
from ._arrays import torch_module
from ._pattern import Pattern, Patterned, grid_of

MOST_KINDS = 256  # whose plans are kept; the oldest goes first
EXPECTED = "a torch tensor, or a NumPy, CuPy or DLPack array"
_DTYPES = "int32", "int64"


# ---- index arrays ----


def _is_tensor(x: Any) -> bool:
    torch = torch_module()
    return torch is not None and isinstance(x, torch.Tensor)


def _is_cupy(x: Any) -> bool:
    cupy = _arrays.cupy_module()
    return cupy is not None and isinstance(x, cupy.ndarray)


def _shared(x: Any, name: str, tensor: bool) -> Any:
    """The very memory as an array whose pointer can be read; as a tensor where the values are one."""
    _arrays.no_mask(x, name)
    if _is_tensor(x) or (not tensor and (isinstance(x, np.ndarray) or _is_cupy(x))):
        return x
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise TypeError(f"{name} is a {type(x).__name__}; expected {EXPECTED}, which products read in place")
    try:
        if isinstance(x, np.ndarray):
            with warnings.catch_warnings():  # of read-only arrays, to which nothing here writes
                warnings.simplefilter("ignore")
                return torch_module().from_numpy(x)
        if tensor:
            return torch_module().from_dlpack(x)
        on_cpu = int(x.__dlpack_device__()[0]) == 1
        return (np if on_cpu else __import__("cupy")).from_dlpack(x)
    except Exception as error:  # whatever the maker's code raises
        raise TypeError(f"{name} is a {type(x).__name__} whose memory cannot be shared: {error}") from error


def _facts(x: Any) -> tuple[str, str, bool]:
    """The dtype, the device, and whether there are no gaps."""
    if _is_tensor(x):
        dense = x.layout is torch_module().strided and not x.is_nested
        return str(x.dtype).removeprefix("torch."), str(x.device), dense and x.is_contiguous()
    dtype = x.dtype.name if x.dtype.isnative else str(x.dtype)
    if _is_cupy(x):
        return dtype, f"cuda:{x.device.id}", x.flags.c_contiguous
    return dtype, "cpu", x.flags.c_contiguous and x.flags.aligned


def _right_tensors(row_ptr: Any, col_idx: Any, entries: int, capacity: int) -> bool:
    """The usual case, asked for quickly: two tensors as they must be."""
    torch = torch_module()
    if torch is None or not isinstance(row_ptr, torch.Tensor) or not isinstance(col_idx, torch.Tensor):
        return False
    dtype, strided = row_ptr.dtype, torch.strided
    return (
        dtype is col_idx.dtype
        and (dtype is torch.int64 or dtype is torch.int32)
        and row_ptr.layout is strided
        and col_idx.layout is strided
        and row_ptr.shape == (entries,)
        and col_idx.shape == (capacity,)
        and row_ptr.is_contiguous()
        and col_idx.is_contiguous()
    )


def _check_array(x: Any, name: str, count: int, what: str) -> str:
    """Its dtype. `count`: how many entries it must have, for `what`."""
    dtype, _, dense = _facts(x)
    if dtype not in _DTYPES:
        raise TypeError(f"{name} has dtype {dtype}; expected int32 or int64")
    if len(x.shape) != 1:
        raise ValueError(f"{name} has {len(x.shape)} dimensions; expected 1")
    if not dense:
        raise ValueError(f"{name} has gaps between its entries; expected none, since it is read in place")
    if x.shape[0] != count:
        raise ValueError(f"{name} has {x.shape[0]} entries; expected {count}{what}")
    return dtype


def check_indices(row_ptr: Any, col_idx: Any, shape: tuple, block: tuple, capacity: int) -> None:
    """Asks for nothing that they hold."""
    rows, cols = grid_of(shape, block)
    if not _right_tensors(row_ptr, col_idx, rows + 1, capacity):
        about = f" for {shape[0]} rows in blocks of {block[0]}"
        dtype = _check_array(row_ptr, "row_ptr", rows + 1, about)
        other = _check_array(col_idx, "col_idx", capacity, ", one for each block of the values")
        if dtype != other:
            raise TypeError(f"row_ptr has dtype {dtype} and col_idx {other}; expected one dtype")
    if capacity > rows * cols:
        raise ValueError(
            f"col_idx has {capacity} entries; expected at most the {rows} x {cols} blocks of the matrix"
        )


def _check_device(row_ptr: Any, col_idx: Any, device: Any) -> None:
    """`device`: its name, or torch's object."""
    for x, name in ((row_ptr, "row_ptr"), (col_idx, "col_idx")):
        where = x.device if _is_tensor(x) else _facts(x)[1]
        if where != device and str(where) != str(device):
            raise ValueError(f"{name} is on {where} and the values on {device}; expected one device")


def _index_type(x: Any) -> int:
    return _abi.I32 if x.dtype.itemsize == 4 else _abi.I64


def _hint(x: Any, name: str, least: float, most: float, expected: str) -> float:
    """A hint as C takes it, where 0 is none."""
    if x is None:
        return 0.0
    if not isinstance(x, numbers.Real):
        raise TypeError(f"{name} is {x!r}; expected a number")
    if not least <= x <= most or math.isinf(x):
        raise ValueError(f"{name} is {x}; expected {expected}")
    return float(x)


# ---- plans ----


class Kind(Patterned):
    """What dynamic patterns of one shape, block, capacity, index type and hints have in common: their
    plans."""

    def __init__(self, shape: tuple, block: tuple, capacity: int, index_type: int, hints: tuple):
        super().__init__(shape, block)
        self.stored_blocks, self.index_type, self.hints = capacity, index_type, hints

    def _make(self, device: str) -> int:
        bsr = _abi.DynamicBsr(
            rows=self.shape[0],
            cols=self.shape[1],
            block_rows=self.block[0],
            block_cols=self.block[1],
            capacity=self.stored_blocks,
            index_type=self.index_type,
            density=self.hints[0],
            skew=self.hints[1],
        )
        handle, context = ctypes.c_void_p(), _context.get(device).handle
        _abi.check(
            _abi.lib.sat_pattern_create_dynamic(context, ctypes.byref(bsr), ctypes.byref(handle)),
            {"capacity": "the number of entries of col_idx"},
        )
        return handle.value

    def raise_fault(self, wait: bool) -> None:
        for handle in list(self._handles.values()):
            _abi.check(_abi.lib.sat_pattern_fault(handle, wait))


_kinds: dict[tuple, Kind] = {}
_lock = threading.Lock()


def kind_of(shape: tuple, block: tuple, capacity: int, index_type: int, hints: tuple) -> Kind:
    key = shape, block, capacity, index_type, hints
    found = _kinds.get(key)
    if found is None:
        with _lock:
            while len(_kinds) >= MOST_KINDS:
                del _kinds[next(iter(_kinds))]
            found = _kinds.setdefault(key, Kind(*key))
    return found


class DynamicPattern:
    """Index arrays of the caller's, with what they are the indices of. In the place of a Pattern."""

    fixed_values = False
    _kind: Kind | None = None

    def __init__(self, row_ptr: Any, col_idx: Any, shape: tuple, block: tuple, hints: tuple = (0.0, 0.0)):
        """All checked."""
        self.row_ptr, self.col_idx, self.shape, self.block, self.hints = row_ptr, col_idx, shape, block, hints
        self.stored_blocks = col_idx.shape[0]  # the capacity, whatever becomes of the array

    def __reduce__(self) -> tuple:
        return DynamicPattern, (self.row_ptr, self.col_idx, self.shape, self.block, self.hints)

    @property
    def indices(self) -> tuple:
        return self.row_ptr, self.col_idx

    @property
    def pattern(self) -> DynamicPattern:
        return self

    @property
    def grid(self) -> tuple[int, int]:
        return grid_of(self.shape, self.block)

    @property
    def kind(self) -> Kind:
        if self._kind is None:
            index_type = _index_type(self.row_ptr)
            self._kind = kind_of(self.shape, self.block, self.stored_blocks, index_type, self.hints)
        return self._kind

    @property
    def caches(self) -> dict[Any, Any]:
        return self.kind.caches

    def same_indices(self, row_ptr: Any, col_idx: Any) -> bool:
        """Whether they are the very arrays: what they hold may change."""
        return self.row_ptr is row_ptr and self.col_idx is col_idx

    def with_indices(self, row_ptr: Any, col_idx: Any) -> DynamicPattern:
        """The same of other arrays, as a backward pass may get them."""
        if self.same_indices(row_ptr, col_idx):
            return self
        return DynamicPattern(row_ptr, col_idx, self.shape, self.block, self.hints)

    def like(self, x: Any) -> DynamicPattern:
        """The same memory as tensors, where x is one."""
        if not _is_tensor(x) or all(map(_is_tensor, self.indices)):
            return self
        return self.with_indices(
            _shared(self.row_ptr, "row_ptr", True), _shared(self.col_idx, "col_idx", True)
        )

    def beside(self, values: Any) -> DynamicPattern:
        """With indices where the values are: this memory, or a copy on another device."""
        where, tensor = _arrays.describe(values, "values").device, _is_tensor(values)
        if all(_facts(x)[1] == where for x in self.indices):
            return self.like(values)
        return self.with_indices(*(_moved(x, where, tensor) for x in self.indices))

    def expected(self, device: str, transposed: bool) -> _abi.PatternView:
        """What the hints say of it, or of its transpose."""
        sides = (self.shape[::-1], self.block[::-1]) if transposed else (self.shape, self.block)
        kind = kind_of(*sides, self.stored_blocks, _index_type(self.row_ptr), self.hints)
        kind.handle(device)
        return kind.view()

    def now(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies in host memory, of which nothing is known."""
        return np.array(_arrays.host(self.row_ptr, "row_ptr")), np.array(
            _arrays.host(self.col_idx, "col_idx")
        )


AnyPattern = Pattern | DynamicPattern


def _moved(x: Any, where: str, tensor: bool) -> Any:
    if tensor and _is_tensor(x):
        return x.to(where)
    x = np.array(_arrays.host(x, "indices"))
    if tensor:
        return torch_module().from_numpy(x).to(where)
    if where == "cpu":
        return x
    cupy = _arrays.cupy_module()
    with cupy.cuda.Device(int(where.split(":")[1])):
        return cupy.asarray(x)


def make_dynamic(
    row_ptr: Any,
    col_idx: Any,
    shape: tuple,
    sides: tuple,
    device: Any,
    tensor: bool,
    density: Any,
    skew: Any,
) -> DynamicPattern:
    """Checks all but what the indices hold. `sides`, `device`, `tensor`: of the values."""
    row_ptr, col_idx = _shared(row_ptr, "row_ptr", tensor), _shared(col_idx, "col_idx", tensor)
    capacity, block = sides[0], (sides[1], sides[2])
    check_indices(row_ptr, col_idx, shape, block, capacity)
    _check_device(row_ptr, col_idx, device)
    hints = _hint(density, "density", 0, 1, "0 to 1"), _hint(skew, "skew", 1, math.inf, "a number from 1 on")
    return DynamicPattern(row_ptr, col_idx, shape, block, hints)


def index_pointers(pattern: AnyPattern, device: str) -> tuple:
    """What a run is given beside its operands. Looks at the arrays anew, which may have been resized."""
    if not pattern.indices:
        return ()
    check_indices(*pattern.indices, pattern.shape, pattern.block, pattern.stored_blocks)
    _check_device(*pattern.indices, device)
    return tuple(map(_pointer, pattern.indices))


def _pointer(x: Any) -> int:
    if _is_tensor(x):
        return x.data_ptr()
    return x.data.ptr if _is_cupy(x) else x.__array_interface__["data"][0]
