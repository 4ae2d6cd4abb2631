"""BsrMatrix: block values of any maker together with a shared pattern."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _abi, _arrays, _quick
from ._arrays import torch_module
from ._dynamic import AnyPattern, DynamicPattern, make_dynamic
from ._indices import host_indices
from ._pattern import Pattern, percent_sparse

MOST = 2**63 - 1  # sizes are int64 in the library


def check_block(block: Any, name: str = "block") -> tuple[int, int]:
    sides = (
        (block, block)
        if isinstance(block, (int, np.integer))
        else tuple(block)
        if isinstance(block, Sequence)
        else ()
    )
    if len(sides) != 2 or not all(isinstance(s, (int, np.integer)) for s in sides):
        raise TypeError(f"{name} is {block!r}; expected a whole number or two")
    if min(sides) < 1 or max(sides) > MOST:
        raise ValueError(f"{name} is {block!r}; expected sides of at least 1 that fit into 64 bits")
    return int(sides[0]), int(sides[1])


def check_shape(shape: Any, name: str = "shape") -> tuple[int, int]:
    try:
        rows, cols = (operator.index(s) for s in shape)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {shape!r}; expected two whole numbers") from None
    if min(rows, cols) < 0 or max(rows, cols) > MOST:
        raise ValueError(f"{name} is {shape!r}; expected sizes of at least 0 that fit into 64 bits")
    return rows, cols


def make_pattern(
    row_ptr: Any,
    col_idx: Any,
    shape: tuple[int, int],
    block: tuple[int, int],
    device: str = "cpu",
) -> Pattern:
    """Validates the indices: the lengths here, all else in the library."""
    rows, cols = host_indices(row_ptr, "row_ptr"), host_indices(col_idx, "col_idx")
    if rows.dtype != cols.dtype:
        rows, cols = rows.astype(np.int64), cols.astype(np.int64)
    grid_rows = -(-shape[0] // block[0])
    if len(rows) != grid_rows + 1:
        raise ValueError(
            f"row_ptr has {len(rows)} entries; expected {grid_rows + 1} for {shape[0]} rows in blocks of "
            f"{block[0]}"
        )
    return Pattern(rows, cols, shape, block, device)


def _contiguous(values: Any, operand: _arrays.Operand, name: str) -> Any:
    if len(operand.shape) != 3:
        raise ValueError(
            f"{name} has {len(operand.shape)} dimensions; expected 3: stored blocks, block rows, block "
            "columns"
        )
    if operand.kind == "torch":
        return values.contiguous()
    if operand.kind == "numpy":
        return np.ascontiguousarray(operand.array)
    if operand.kind == "cupy":
        return _arrays.cupy_module().ascontiguousarray(values)
    if not _arrays.is_dense(operand):
        raise ValueError(f"{name} has strides {operand.strides}; expected no gaps")
    return values


def check_values(values: Any, pattern: Pattern) -> Any:
    """Values that fit a pattern, without gaps."""
    torch, expected = torch_module(), (pattern.stored_blocks, *pattern.block)
    _arrays.refuse_nested(torch, values, "values")
    # may have no memory: functorch, fake tensors
    plain = torch is not None and isinstance(values, torch.Tensor)
    operand = None if plain else _arrays.describe(values, "values")
    shape = tuple(values.shape) if operand is None else operand.shape
    if shape != expected:
        raise ValueError(f"values has shape {shape}; expected {expected}")
    if operand is not None:
        return _contiguous(values, operand, "values")
    if values.layout is not torch.strided:
        raise TypeError(f"values is {_what(values)}; expected a dense tensor")
    _arrays.dtype_code(values.dtype, "values")
    return values.contiguous()


def _dynamic_parts(
    row_ptr: Any, col_idx: Any, values: Any, shape: Any, density: Any, skew: Any
) -> tuple[DynamicPattern, Any]:
    torch = torch_module()
    _arrays.refuse_nested(torch, values, "values")
    tensor = torch is not None and isinstance(values, torch.Tensor)
    if tensor:  # it may have no memory, as in check_values
        if values.dim() != 3:
            raise ValueError(f"values has {values.dim()} dimensions; expected 3: blocks, block rows, columns")
        if values.layout is not torch.strided:
            raise TypeError(f"values is {_what(values)}; expected a dense tensor")
        if values.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            _arrays.dtype_code(values.dtype, "values")  # which torch.compile cannot follow
        values = values.contiguous()
        sides, device = tuple(values.shape), values.device
    else:
        values = _arrays.host(values, "values") if isinstance(values, (list, tuple)) else values
        operand = _arrays.describe(values, "values")
        values, sides, device = _contiguous(values, operand, "values"), operand.shape, operand.device
    if min(sides[1:]) < 1:
        raise ValueError(f"values has blocks of {sides[1]}x{sides[2]}; expected sides of at least 1")
    shape = check_shape(shape)
    return make_dynamic(row_ptr, col_idx, shape, sides, device, tensor, density, skew), values


def _fixed_plans(pattern: Pattern, values: Any) -> Any:
    from . import _fixed

    refuse_gradients(values, "A.requires_grad_(False), or freeze A.detach()")
    return _fixed.of(pattern, values)


def refuse_gradients(values: Any, way_out: str) -> None:
    """Fixed values get no gradients."""
    if getattr(values, "requires_grad", False):
        raise RuntimeError(f"values requires grad, and frozen values get no gradients: call {way_out}")


def _no_runner(*_arrays: Any) -> None:
    """The fast path of a matrix that has none."""


class BsrMatrix:
    """A block-sparse matrix: `values[i]` is the i-th stored block, row by row; `row_ptr` and `col_idx` say
    where it is.

    Rows and columns need not be multiples of the block: the last blocks are stored whole, and what stands
    beyond the matrix is ignored. The values may be a NumPy, torch, CuPy or DLPack array and are not copied
    unless they have gaps; the indices are validated and copied once, and shared by everything that is made
    from this matrix.

    >>> import numpy as np, sparse_autotune as sa
    >>> A = sa.BsrMatrix([0, 2, 3], [0, 2, 1], np.arange(1, 13, dtype=np.float32).reshape(3, 2, 2), (4, 6))
    >>> A
    BsrMatrix(4x6, float32, block 2x2, 3 of 6 blocks (50.0 % sparse), numpy on cpu)
    >>> A.to_dense()
    array([[ 1.,  2.,  0.,  0.,  5.,  6.],
           [ 3.,  4.,  0.,  0.,  7.,  8.],
           [ 0.,  0.,  9., 10.,  0.,  0.],
           [ 0.,  0., 11., 12.,  0.,  0.]], dtype=float32)
    >>> A @ np.ones(6, np.float32)
    array([14., 22., 19., 23.], dtype=float32)
    >>> (A.T @ np.ones((4, 1), np.float32)).ravel()
    array([ 4.,  6., 20., 22., 12., 14.], dtype=float32)
    """

    __array_ufunc__ = None  # so that ndarray @ BsrMatrix comes here

    _adopted: Any = None  # the caches that its runners are from

    def __init__(self, row_ptr: Any, col_idx: Any, values: Any, shape: tuple[int, int]):
        # by _make: a pattern, values, a transpose and a Fixed, all checked
        if isinstance(row_ptr, (Pattern, DynamicPattern)):
            self._set(row_ptr, col_idx, values, shape)
            return
        if isinstance(values, (list, tuple)):
            values = _arrays.host(values, "values")
        operand = _arrays.describe(values, "values")
        values = _contiguous(values, operand, "values")
        shape, block = check_shape(shape), operand.shape[1:]
        if min(block) < 1:
            raise ValueError(f"values has blocks of {block[0]}x{block[1]}; expected sides of at least 1")
        pattern = make_pattern(row_ptr, col_idx, shape, block, operand.device)
        if operand.shape[0] != pattern.stored_blocks:
            raise ValueError(f"values has {operand.shape[0]} blocks; col_idx has {pattern.stored_blocks}")
        self._set(pattern, values, False)

    @classmethod
    def dynamic(
        cls,
        row_ptr: Any,
        col_idx: Any,
        values: Any,
        shape: tuple[int, int],
        *,
        density: float | None = None,
        skew: float | None = None,
    ) -> BsrMatrix:
        """A matrix whose indices change: a mask that is new at every step, a matrix that is pruned while it
        is trained. Products read `row_ptr` and `col_idx` where they are, when they run; rewrite them in
        place, or make a new matrix of new ones, which costs microseconds. On a GPU no product brings them to
        the host or waits for anything.

        They are int32 or int64 torch, NumPy, CuPy or DLPack arrays without gaps, on the device of the
        values. The length of `col_idx`, and of `values`, is the capacity: the most blocks that can be stored.
        How many there are is the last row pointer; what stands behind them is ignored, and gets gradients of
        zero.

        - ``density`` and ``skew`` say what to tune for: the share of blocks that are stored (else the
          capacity is used up), and how many the heaviest row has over the mean (else 2). All matrices of one
          shape, block, capacity and hints share what was tuned.
        - Indices that break the rules are never followed out of bounds: a row with wrong columns is empty. On
          the CPU the product raises ValueError. On a GPU a later product of a matrix of that kind does, or
          `check_indices()`.
        - Such a matrix cannot be frozen. Conversions (`to_dense()` and others) read the indices to the host.

        >>> import numpy as np, sparse_autotune as sa
        >>> row_ptr, col_idx = np.array([0, 1, 2]), np.array([0, 1, -1])
        >>> A = sa.BsrMatrix.dynamic(row_ptr, col_idx, np.array([[[1.0]], [[2.0]], [[3.0]]]), (2, 2))
        >>> A
        BsrMatrix(2x2, float64, block 1x1, up to 3 of 4 blocks (dynamic), numpy on cpu)
        >>> A @ np.array([1.0, 10.0])
        array([ 1., 20.])
        >>> row_ptr[:], col_idx[:] = [0, 2, 3], [0, 1, 0]
        >>> A @ np.array([1.0, 10.0])
        array([21.,  3.])
        """
        return cls._make(*_dynamic_parts(row_ptr, col_idx, values, shape, density, skew))

    @classmethod
    def _make(
        cls, pattern: AnyPattern, values: Any, transposed: bool = False, fixed: Any = None
    ) -> BsrMatrix:
        # not by __new__, which torch.compile of 2.6 cannot follow
        return cls(pattern, values, transposed, fixed)

    def _set(self, pattern: AnyPattern, values: Any, transposed: bool, fixed: Any = None) -> None:
        self._pattern, self._values, self._transposed = pattern, values, transposed
        self._fixed, self._plans = fixed, pattern if fixed is None else fixed
        torch = torch_module()
        self._torch = torch is not None and isinstance(values, torch.Tensor)
        self._runner = self._left_runner = self._into = self._left_into = _no_runner
        if self._torch:
            from . import _torch

            _torch.quick.adopt(self)
        elif isinstance(values, np.ndarray):
            _quick.adopt(self)

    def __reduce__(self) -> tuple:
        make = BsrMatrix._make if self._fixed is None else BsrMatrix._make_frozen
        return make, (self._pattern, self._values, self._transposed)

    def __copy__(self) -> BsrMatrix:
        return BsrMatrix._make(self._pattern, self._values, self._transposed, self._fixed)

    @classmethod
    def _make_frozen(cls, pattern: Pattern, values: Any, transposed: bool) -> BsrMatrix:
        return cls._make(pattern, values, transposed).freeze()

    def _like(self, values: Any, transposed: bool) -> BsrMatrix:
        """With this pattern, and frozen where this matrix is."""
        if values is self._values:
            return BsrMatrix._make(self._pattern, values, transposed, self._fixed)
        made = BsrMatrix._make(self._pattern, values, transposed)
        return made if self._fixed is None else made.freeze()

    # ---- made from others ----

    @classmethod
    def from_torch(cls, x: Any) -> BsrMatrix:
        """From a `torch.sparse_bsr` tensor, or a `torch.sparse_csr` or `torch.sparse_csc` one, which has
        blocks of 1x1; the values are shared, the indices copied. Of a `torch.sparse_bsc` tensor, whose blocks
        stand in another order, the values are copied too.

        Gradients reach the values of a BsrMatrix, not the sparse tensor that it came from.
        """
        from . import _sparse

        torch = torch_module()
        if torch is None or not isinstance(x, torch.Tensor) or x.layout not in _sparse.compressed_layouts():
            raise TypeError(
                f"x is {_what(x)}; expected a torch.sparse_bsr, sparse_bsc, sparse_csr or sparse_csc tensor"
            )
        return _sparse.tensor_as_bsr(x, "x")

    @classmethod
    def from_scipy(cls, x: Any, block: Any = None) -> BsrMatrix:
        """From a `scipy.sparse` matrix or array; one that is not BSR is converted, see `from_csr`."""
        if getattr(x, "format", None) is None or not hasattr(x, "tocsr"):
            raise TypeError(f"x is {_what(x)}; expected a scipy.sparse matrix or array")
        if x.format != "bsr" or (block is not None and check_block(block) != tuple(x.blocksize)):
            return cls.from_csr(x, "auto" if block is None else block)
        _arrays.dtype_code(x.dtype, "x")
        from . import _sparse

        return cls(*_sparse.scipy_parts(x, "x"))

    @classmethod
    def from_dense(
        cls,
        x: Any,
        block: Any = (64, 64),
        *,
        keep: float | None = None,
        threshold: float | None = None,
    ) -> BsrMatrix:
        """Blocks of a dense matrix: the share `keep` of them that has the largest norms, or those in which an
        element is larger than `threshold`; by default all that are not zero.

        >>> import numpy as np, sparse_autotune as sa
        >>> sa.BsrMatrix.from_dense(np.diag(np.arange(1.0, 9.0)), block=2, keep=0.125)
        BsrMatrix(8x8, float64, block 2x2, 2 of 16 blocks (87.5 % sparse), numpy on cpu)
        """
        from . import _convert

        return cls(*_convert.from_dense(x, check_block(block), keep, threshold))

    @classmethod
    def from_csr(cls, x: Any, block: Any = "auto", *, columns: int = 128) -> BsrMatrix:
        """From a SciPy sparse matrix or a torch CSR tensor, whose values are copied: gradients do not reach
        it.

        `block="auto"` tries several block sizes on the machine at hand and keeps the one whose product with
        `columns` columns is fastest: larger blocks run at a higher rate and store more zeros.

        >>> import scipy.sparse, sparse_autotune as sa
        >>> sa.BsrMatrix.from_csr(scipy.sparse.eye_array(8, format="csr"), block=4)
        BsrMatrix(8x8, float64, block 4x4, 2 of 4 blocks (50.0 % sparse), numpy on cpu)
        """
        from . import _convert

        return cls(
            *_convert.from_csr(
                x, block if isinstance(block, str) and block == "auto" else check_block(block), columns
            )
        )

    # ---- what it is ----

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self._pattern.shape
        return (cols, rows) if self._transposed else (rows, cols)

    @property
    def ndim(self) -> int:
        return 2

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of one block of this matrix."""
        r, c = self._pattern.block
        return (c, r) if self._transposed else (r, c)

    @property
    def row_ptr(self) -> Any:
        """Of the matrix as it is stored: a transposed one (`is_transposed`) shares its parts with the
        other. A NumPy array; of a dynamic matrix the array that it was made of."""
        return self._pattern.row_ptr

    @property
    def col_idx(self) -> Any:
        """Block columns, of the matrix as it is stored; an array as `row_ptr`."""
        return self._pattern.col_idx

    @property
    def is_dynamic(self) -> bool:
        return isinstance(self._pattern, DynamicPattern)

    @property
    def values(self) -> Any:
        """The stored blocks: (stored blocks, block rows, block columns)."""
        return self._values

    @values.setter
    def values(self, values: Any) -> None:
        values = check_values(values, self._pattern)
        # those that have this matrix's transpose, or a copy, keep the old values and their plans
        fixed = None if self._fixed is None else _fixed_plans(self._pattern, values)
        self._set(self._pattern, values, self._transposed, fixed)

    @property
    def is_transposed(self) -> bool:
        return self._transposed

    @property
    def dtype(self) -> Any:
        return self._values.dtype

    @property
    def device(self) -> Any:
        return self._values.device if self._torch else _arrays.describe(self._values, "values").device

    @property
    def requires_grad(self) -> bool:
        return self._torch and self._values.requires_grad

    @property
    def T(self) -> BsrMatrix:
        """The transpose: shares values and pattern, and costs nothing."""
        return BsrMatrix._make(self._pattern, self._values, not self._transposed, self._fixed)

    @property
    def stored_blocks(self) -> int:
        """Of a dynamic matrix the capacity."""
        return self._pattern.stored_blocks

    @property
    def density(self) -> float:
        """Of a dynamic matrix that of its capacity."""
        grid = self._pattern.grid
        return self.stored_blocks / (grid[0] * grid[1]) if grid[0] * grid[1] else 0.0

    @property
    def stats(self) -> dict[str, float]:
        """What the pattern looks like: density, skew of rows and columns, overlap of neighbouring rows, ...
        Of a dynamic matrix what is expected of it.

        >>> import numpy as np, sparse_autotune as sa
        >>> sa.BsrMatrix.from_dense(np.eye(4), block=2).stats["density"]
        0.5
        """
        if self.is_dynamic:
            v = self._pattern.expected(_arrays.describe(self._values, "values").device, self._transposed)
        else:
            v = self._own_pattern().view()
        return {
            "stored_blocks": v.stored_blocks,
            "stored_elements": v.stored_elements,
            "density": v.density,
            "skew": v.skew,
            "column_skew": v.t_skew,
            "overlap": v.overlap,
            "most_in_a_row": v.max_row,
            "empty_rows": v.empty_rows,
        }

    # ---- made into others ----

    def with_values(self, values: Any) -> BsrMatrix:
        """The same pattern with other values."""
        return BsrMatrix._make(self._pattern, check_values(values, self._pattern), self._transposed)

    def detach(self) -> BsrMatrix:
        return (
            BsrMatrix._make(self._pattern, self._values.detach(), self._transposed)
            if self._torch and self._fixed is None
            else self
        )

    def requires_grad_(self, requires_grad: bool = True) -> BsrMatrix:
        if not self._torch:
            raise TypeError(f"values is {_what(self._values)}; only torch tensors can require gradients")
        if requires_grad and self._fixed is not None:
            raise RuntimeError("the matrix is frozen: call unfreeze() before requires_grad_()")
        self._values.requires_grad_(requires_grad)
        return self

    def to_dense(self) -> Any:
        """A dense array of the values' kind; differentiable in torch."""
        from . import _convert

        return _convert.to_dense(self)

    def to(self, device: Any = None, dtype: Any = None) -> BsrMatrix:
        """On another device ("cpu", "cuda:0") or with another dtype. NumPy values that go to a GPU become
        torch's (or CuPy's)."""
        from . import _convert

        values = _convert.move(self._values, device, dtype)
        if self.is_dynamic:
            return BsrMatrix._make(self._pattern.beside(values), values, self._transposed)
        return self._like(values, self._transposed)

    def to_static(self) -> BsrMatrix:
        """A matrix with the indices that a dynamic one has now, which stay; the values are shared. It waits
        for the indices and raises where they are wrong. A matrix that is not dynamic is returned itself."""
        from . import _convert

        return _convert.to_static(self) if self.is_dynamic else self

    def to_torch(self) -> Any:
        """A `torch.sparse_bsr` tensor; blocks must divide the shape, as torch wants it."""
        from . import _convert

        return _convert.to_torch(self)

    def to_scipy(self) -> Any:
        """A `scipy.sparse.bsr_array`; blocks must divide the shape, as SciPy wants it."""
        from . import _convert

        return _convert.to_scipy(self)

    def contiguous(self) -> BsrMatrix:
        """Itself, or of a transpose a matrix that is stored the other way round."""
        from . import _convert

        if not self._transposed:
            return self
        self._refuse_dynamic("contiguous()")
        made = _convert.contiguous(self)
        return made if self._fixed is None else made.freeze()

    def _own_pattern(self) -> Pattern:
        """The pattern of this matrix, of a transpose too."""
        self._refuse_dynamic("a mask of attention")
        if not self._transposed:
            return self._pattern
        from . import _convert

        row_ptr, col_idx, _ = _convert.transposed(self._pattern)
        return make_pattern(row_ptr, col_idx, self.shape, self.block)

    # ---- indices that change ----

    def check_indices(self, wait: bool = True) -> None:
        """Raises ValueError where a product on a GPU found wrong indices of a dynamic matrix, which no later
        product has reported yet. `wait` is for all that is queued on the device; without it this sees the
        products that are done. Matrices of one shape, block, capacity, index type and hints report together,
        and each fault once. On the CPU the product itself has raised."""
        if self.is_dynamic:
            self._pattern.kind.raise_fault(wait)

    def _refuse_dynamic(self, what: str) -> None:
        if self.is_dynamic:
            raise NotImplementedError(
                f"the indices of the matrix change, and {what} needs some that stay: use to_static()"
            )

    # ---- values that do not change ----

    def freeze(self) -> BsrMatrix:
        """Says that the values stay as they are, as in inference; returns the matrix. Kernels that keep them
        in another form (dense, padded, packed) then convert them once, and not at each product.

        Writes that torch counts, and new `values`, are seen by the next product, which takes them in. For
        others (those of NumPy and CuPy, by DLPack or `.data`, of collectives) call `refresh()` after them.
        Values that require gradients cannot be frozen. The transpose, copies and what `to()` gives are
        frozen, too; `with_values()` is not.

        A frozen matrix keeps at most 8 plans that hold converted values, each as large as the dense matrix at
        most; further ones convert at each product. They go with the matrix, its transposes and copies, or
        with `unfreeze()`.

        >>> import numpy as np, sparse_autotune as sa
        >>> A = sa.BsrMatrix.from_dense(np.eye(4), block=2).freeze()
        >>> A.is_frozen, (A @ np.ones(4))[0]
        (True, np.float64(1.0))
        >>> A.values[:] *= 3
        >>> A.refresh()
        >>> (A @ np.ones(4))[0]
        np.float64(3.0)
        """
        self._refuse_dynamic("freeze()")
        if self._fixed is None:
            self._fix(_fixed_plans(self._pattern, self._values))
        return self

    def unfreeze(self) -> BsrMatrix:
        """Takes `freeze()` back: each product reads the values again."""
        if self._fixed is not None:
            self._fix(None)
        return self

    def refresh(self) -> None:
        """Takes in values that were written to in a way that is not seen: see `freeze()`. Does nothing
        where the matrix is not frozen."""
        if self._fixed is not None:
            self._fixed.refresh(self._values)
            self._follow()

    @property
    def is_frozen(self) -> bool:
        return self._fixed is not None

    def _fix(self, fixed: Any) -> None:
        self._set(self._pattern, self._values, self._transposed, fixed)

    def _follow(self) -> None:
        """Takes the runners of the values that its plans hold now."""
        if self._fixed is not None and self._adopted is not None and self._adopted is not self._plans.caches:
            _quick.adopt(self)

    # ---- products ----

    def __matmul__(self, other: Any) -> Any:
        raise NotImplementedError  # _ops, which knows products, puts its own here

    def __rmatmul__(self, other: Any) -> Any:
        raise NotImplementedError

    # ---- an operator of scipy.sparse.linalg ----

    def matvec(self, x: Any) -> Any:
        """``A @ x`` of a vector, (columns,) or (columns, 1). With `rmatvec`, `matmat` and `rmatmat` it makes
        a matrix of NumPy values an operator for `scipy.sparse.linalg`. Beside a wider dtype the values are
        widened at each call: use one dtype where speed counts.

        >>> import numpy as np, scipy.sparse.linalg, sparse_autotune as sa
        >>> A = sa.BsrMatrix.from_dense(np.diag([1.0, 2.0, 4.0, 8.0]), block=2)
        >>> scipy.sparse.linalg.cg(A, np.ones(4))[0].round(6)
        array([1.   , 0.5  , 0.25 , 0.125])
        """
        return self._apply(x, "vector")

    def rmatvec(self, x: Any) -> Any:
        """``A.T @ x`` of a vector."""
        return self.T._apply(x, "vector")

    def matmat(self, X: Any) -> Any:
        """``A @ X`` of a matrix, (columns, any number)."""
        return self._apply(X, "matrix")

    def rmatmat(self, X: Any) -> Any:
        """``A.T @ X`` of a matrix."""
        return self.T._apply(X, "matrix")

    def _apply(self, x: Any, kind: str) -> Any:
        x = np.asarray(x) if isinstance(x, (list, tuple, np.ndarray)) else x
        name, cols, shape = "x" if kind == "vector" else "X", self.shape[1], tuple(x.shape)
        if not (shape in ((cols,), (cols, 1)) if kind == "vector" else len(shape) == 2 and shape[0] == cols):
            raise ValueError(
                f"{name} has shape {shape}; expected "
                + (f"({cols},) or ({cols}, 1)" if kind == "vector" else f"({cols}, any number)")
            )
        matrix = self
        if (
            isinstance(x, np.ndarray)
            and isinstance(self._values, np.ndarray)
            and x.dtype != self.dtype
            and x.dtype.kind in "biuf"
        ):
            wide = np.result_type(self.dtype, x.dtype) if x.dtype.kind == "f" else self.dtype
            if wide != self.dtype:  # not frozen, since it serves this call alone
                matrix = BsrMatrix._make(self._pattern, self._values.astype(wide), self._transposed)
            x = x.astype(wide)
        return matrix @ x

    # ---- shown ----

    def __repr__(self) -> str:
        grid = self._pattern.grid
        operand = _arrays.describe(self._values, "values")
        rows, cols = self.shape
        dynamic = self.is_dynamic
        return (
            f"BsrMatrix({rows}x{cols}, {_abi.DTYPE_NAMES[operand.dtype]}, block "
            f"{self.block[0]}x{self.block[1]}, {'up to ' if dynamic else ''}{self.stored_blocks} of "
            f"{grid[0] * grid[1]} blocks ({'dynamic' if dynamic else percent_sparse(self.density)}), "
            f"{operand.kind} on {operand.device}"
            f"{', transposed' if self._transposed else ''}{', frozen' if self.is_frozen else ''})"
        )

    def _repr_html_(self) -> str:
        from ._picture import matrix_picture

        return matrix_picture(self)


def _what(x: Any) -> str:
    layout = getattr(x, "layout", None)
    return f"a {type(x).__name__}" + (f" of layout {layout}" if layout is not None else "")
