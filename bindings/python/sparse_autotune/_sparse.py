"""Sparse matrices of torch, SciPy and torch_sparse as BsrMatrix; single elements are blocks of 1x1. Each is
converted once, and remembered while it lives."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import numpy as np

from . import _arrays
from ._arrays import torch_module
from ._indices import check_scipy
from ._matrix import BsrMatrix, make_pattern

# by object: what was made of a plain sparse matrix; goes when that goes
_known: dict[int, tuple[Any, BsrMatrix]] = {}


def uncompiled(call: Any) -> Any:
    """Keeps torch.compile out of a function and all that it calls.

    torch.compile leaves a frame that holds a sparse tensor to Python. But it would go on with the frames that
    this one calls, where it cannot follow what is done with the tensor's parts.
    """
    kept: list[Any] = []

    @functools.wraps(call)
    def outside(*arguments: Any, **words: Any) -> Any:
        if not kept:
            from ._torch import private

            if not private.compiler_is_loaded():
                return call(*arguments, **words)
            kept.append(torch_module().compiler.disable(call))
        return kept[0](*arguments, **words)

    return outside


def is_sparse_tensor(x: Any) -> bool:
    """Of torch. torch.compile leaves what holds one to Python: to compile what that calls would take seconds,
    and gain nothing."""
    torch = torch_module()
    return torch is not None and isinstance(x, torch.Tensor) and x.layout is not torch.strided


EXPECTED = "a sparse tensor of torch (BSR, BSC, CSR, CSC), a SciPy BSR, CSR or CSC matrix or a BsrMatrix"


def compressed_layouts() -> tuple:
    """The layouts of torch that are taken as they are."""
    torch = torch_module()
    return torch.sparse_bsr, torch.sparse_csr, torch.sparse_bsc, torch.sparse_csc


def _by_rows(x: Any, name: str) -> Any:
    """A BSR or CSR tensor itself, or of a BSC or CSC one the transpose, which is one of those."""
    if x.layout in compressed_layouts()[:2]:
        return x
    _check_dimensions(x, name)
    return x.transpose(0, 1)


def _check_dimensions(x: Any, name: str) -> None:
    torch = torch_module()
    if x.dim() != 2 or x.values().dim() != (3 if x.layout in (torch.sparse_bsr, torch.sparse_bsc) else 1):
        raise ValueError(f"{name} has {x.dim()} dimensions; expected 2, without batches or dense dimensions")


def _block_values(stored: Any) -> Any:
    """Of a BSR tensor its values, of a CSR one a view of them as blocks of 1x1. Detached: torch.compile
    cannot take in a view of a sparse tensor."""
    values = stored.values().detach()
    return values if values.dim() == 3 else values.view(-1, 1, 1)


def _torch_parts(x: Any, name: str) -> tuple:
    _check_dimensions(x, name)
    return x.crow_indices().detach(), x.col_indices().detach(), _block_values(x), tuple(x.shape)


@uncompiled
def tensor_as_bsr(x: Any, name: str) -> BsrMatrix:
    stored = _by_rows(x, name)
    _arrays.dtype_code(x.dtype, name)
    made = BsrMatrix(*_torch_parts(stored, name))
    return made if stored is x else made.T


def scipy_parts(x: Any, name: str) -> tuple:
    """Of a CSC matrix those of its transpose, which is a CSR one."""
    check_scipy(x, name)
    if not x.has_canonical_format:
        x = x.copy()
        x.sum_duplicates()
    if x.format == "bsr":
        return x.indptr, x.indices, x.data, x.shape
    stored = x.indptr[-1]  # the arrays may be longer
    shape = x.shape if x.format == "csr" else x.shape[::-1]
    return x.indptr, x.indices[:stored], x.data[:stored].reshape(-1, 1, 1), shape


def _blocks_of(row_ptr: Any, col_idx: Any, values: Any, shape: tuple[int, int]) -> BsrMatrix:
    """As BsrMatrix(...), whatever the values are: booleans only say where blocks are."""
    if values.dtype in (np.bool_, getattr(torch_module(), "bool", np.bool_)):
        return BsrMatrix._make(make_pattern(row_ptr, col_idx, shape, tuple(values.shape[1:])), values)
    return BsrMatrix(row_ptr, col_idx, values, shape)


def _of_torch_sparse(x: Any) -> bool:
    """Whether x is like the SparseTensor of torch_sparse, which graph libraries have."""
    return callable(getattr(x, "csr", None)) and callable(getattr(x, "sparse_sizes", None))


def is_sparse(x: Any) -> bool:
    torch = torch_module()
    if isinstance(x, BsrMatrix):
        return True
    if torch is not None and isinstance(x, torch.Tensor):
        return x.layout is not torch.strided and not x.is_mkldnn and not x.is_nested
    return (hasattr(x, "tocsr") and hasattr(x, "format")) or _of_torch_sparse(x)


def as_bsr(x: Any, name: str, blocks_only: bool = False, outside: bool = False) -> BsrMatrix:
    """A BsrMatrix for a compressed sparse tensor of torch or a SciPy BSR, CSR or CSC matrix, made once an
    object. `blocks_only`: the values do not matter, and may be booleans. `outside`: torch.compile is kept out
    already."""
    if type(x) is BsrMatrix or isinstance(x, BsrMatrix):
        return x
    torch = torch_module()
    if torch is not None and isinstance(x, torch.Tensor):
        if x.layout not in compressed_layouts():
            raise TypeError(f"{name} is a tensor of layout {x.layout}; expected {EXPECTED}")
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} is a sparse tensor that requires grad, and gradients cannot reach it: use "
                f"BsrMatrix.from_torch({name}).requires_grad_()"
            )
        if not blocks_only or x.dtype != torch.bool:
            _arrays.dtype_code(x.dtype, name)
        return (_remembered_tensor if outside else _uncompiled_tensor)(x, name, blocks_only)
    if getattr(x, "format", None) in ("bsr", "csr", "csc"):
        if not blocks_only or x.dtype != bool:
            _arrays.dtype_code(x.dtype, name)
        return _remembered(x, lambda m: _scipy_unchanged(m, x), lambda x: _make_of_scipy(x, name))
    if _of_torch_sparse(x):
        return as_bsr(_tensor_of(x), name, blocks_only)
    kind = f"a SciPy matrix of format {x.format}" if hasattr(x, "format") else f"a {type(x).__name__}"
    raise TypeError(f"{name} is {kind}; expected {EXPECTED}")


def _make_of_scipy(x: Any, name: str) -> BsrMatrix:
    m = _blocks_of(*scipy_parts(x, name))
    if x.format == "csc":
        m = m.T
    m._made_of = x.data if np.may_share_memory(m._values, x.data) else None
    return m


def _scipy_unchanged(m: BsrMatrix, x: Any) -> bool:
    """SciPy's matrices may be changed in place, indices too. One that had duplicates shares no data
    with m."""
    if m._made_of is not x.data or m.shape != x.shape:
        return False
    return m._pattern.same_indices(x.indptr, x.indices[: len(m._values)])


_tensors: dict[int, tuple[Any, tuple, Any]] = {}  # by object: the CSR tensor that has a SparseTensor's parts


def _same_memory(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype)


def _tensor_of(x: Any) -> Any:
    """A SparseTensor as a CSR tensor with the same parts; entries without a value are 1."""
    torch, key = torch_module(), id(x)
    parts = x.csr()
    found = _tensors.get(key)
    if found is not None and found[0]() is x and all(map(_same_memory, found[1], parts)):
        return found[2]
    row_ptr, col, value = parts
    if value is None:
        value = torch.ones(col.shape, device=col.device)
    invariants = torch.sparse.check_sparse_tensor_invariants
    with invariants(invariants.is_enabled()):  # as it is set; torch warns of a setting that nobody made
        made = torch.sparse_csr_tensor(row_ptr, col, value, size=tuple(x.sparse_sizes()))
    _tensors[key] = (weakref.ref(x, lambda _: _tensors.pop(key, None)), parts, made)
    return made


def _remembered_tensor(x: Any, name: str, blocks_only: bool) -> BsrMatrix:
    """The indices are compared on the CPU, but for traces, which would see it; on a GPU, where that would
    wait for all that is queued, once torch has counted that the tensor, its indices or its values, was
    written to. `Seen` finds what it does not count. Values that had to be copied, those of a BSC tensor, are
    copied anew at each call; a CSC tensor has those of its transpose, and shares them."""
    from ._torch import modes, patterns, private

    stored = _by_rows(x, name)
    version, cpu = private.version_of(x), patterns.in_host_memory(x)
    trusted = not cpu or modes.watched()

    def made_of(m: BsrMatrix, indices: tuple) -> BsrMatrix:
        m._counted, m._seen = (
            version,
            patterns.Owned(indices, patterns.Seen(indices, (m.row_ptr, m.col_idx))),
        )
        return m

    def make(_x: Any) -> BsrMatrix:
        parts = _torch_parts(stored, name)
        m = _blocks_of(*parts)
        m = made_of(m if stored is x else m.T, parts[:2])
        m._shared = m._values.data_ptr() == parts[2].data_ptr()
        return m

    def unchanged(m: BsrMatrix) -> bool:
        if trusted and m._counted == version and (cpu or m._seen.still()):
            return True
        if x.is_cuda and torch_module().cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{name} was written to after its last product, and a CUDA graph is being captured: run this "
                "product once before"
            )
        if m._shared and m._values.data_ptr() != stored.values().data_ptr():
            return False
        indices = stored.crow_indices(), stored.col_indices()
        if cpu:
            return m._seen.seen.still(indices)
        same = m._pattern.same_indices(*(i.cpu().numpy() for i in indices))
        if same:
            made_of(m, indices)
        return same

    m = _remembered(x, unchanged, make)
    if m._shared:
        return m
    values = m._values if blocks_only else _block_values(stored).contiguous()
    return BsrMatrix._make(m._pattern, values, stored is not x)


_uncompiled_tensor = uncompiled(_remembered_tensor)


def _remembered(x: Any, unchanged: Any, make: Any) -> BsrMatrix:
    key = id(x)
    found = _known.get(key)
    if found is not None and found[0]() is x and unchanged(found[1]):
        return found[1]
    made = make(x)
    _known[key] = (weakref.ref(x, lambda _: _known.pop(key, None)), made)
    return made
