"""What `matmul` and `sampled_matmul` call for torch tensors: chooses the route that a product takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _abi, _ops, _products
from .._matrix import BsrMatrix
from .._sparse import as_bsr, is_sparse
from . import modes
from .eager import (
    ACTIVATIONS,
    Product,
    differentiable,
    differentiable_sampled,
    forward,
    operator_product,
    operator_sampled,
    refuse_tf32,
)
from .modes import plain
from .operators import autocasts, cast
from .patterns import index_tensors
from .private import any_autocast, forward_ad, is_tracing
from .refusals import refuse_tangents
from .sharding import alike

# ---- through the operators ----


def may_fuse() -> bool:
    """Whether an operator may compute the activation, too: not where gradients are wanted, and not where
    torch.jit.trace compares traces with and without them."""
    return not torch.is_grad_enabled() and (torch.compiler.is_compiling() or not is_tracing())


def _through_operator(
    a: BsrMatrix,
    b: Tensor,
    left: bool,
    bias: Tensor | None,
    activation: str,
    alpha: float,
) -> Tensor:
    fused = activation == "none" or may_fuse()
    values, row_ptr, col_idx, bias = alike(b, a._values, *a._index, bias)
    result = operator_product(
        a._pattern,
        values,
        (row_ptr, col_idx),
        b,
        bias,
        a._transposed,
        left,
        alpha,
        activation if fused else "none",
        a._fixed is not None,
    )
    return result if fused else ACTIVATIONS[activation](result)


def _into(
    a: BsrMatrix,
    b: Tensor,
    left: bool,
    bias: Tensor | None,
    activation: str,
    alpha: float,
    out: Any,
    beta: float,
) -> Tensor:
    """The product through the operator, into out where there is one; the activation waits for beta * out."""
    _products.check_beta(beta, out)
    if out is None:
        return _through_operator(a, b, left, bias, activation, alpha)
    if not isinstance(out, Tensor):
        raise TypeError(
            f"out is a {type(out).__name__}; expected a torch tensor, as {'A' if left else 'B'} is"
        )
    result = _through_operator(a, b, left, bias, "none" if beta != 0 else activation, alpha)
    if out.shape != result.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; expected {tuple(result.shape)}")
    if out.dtype != result.dtype and not (out.dtype == torch.float32 and result.dtype.itemsize == 2):
        raise TypeError(f"out has dtype {out.dtype}; expected {result.dtype}")
    if out.device != result.device:
        raise ValueError(f"out is on {out.device} and the operands on {result.device}; expected one device")
    if beta != 0:
        result = result + beta * out
        result = result if activation == "none" else ACTIVATIONS[activation](result)
    return out.copy_(result)


def _matmul_compiled(A, B, bias, activation, alpha, out, beta, out_dtype):
    """matmul as torch.compile traces it: no Python that it cannot follow."""
    left = not isinstance(A, BsrMatrix)
    a, b = (B, A) if left else (A, B)
    if not isinstance(a, BsrMatrix) or not a._torch or not isinstance(b, Tensor):
        raise TypeError(
            "A or B: inside torch.compile one is a BsrMatrix with torch values, and the other a torch tensor"
        )
    if out_dtype is not None:
        raise NotImplementedError("out_dtype is not offered inside torch.compile")
    for x, name in ((alpha, "alpha"), (beta, "beta")):
        if isinstance(x, Tensor):
            raise TypeError(f"{name} is a tensor; inside torch.compile a number is expected")
    if bias is not None and not isinstance(bias, Tensor):
        raise TypeError("bias: inside torch.compile a torch tensor is expected")
    return _into(a, b, left, bias, activation or "none", alpha, out, beta)


# ---- matmul ----


def _with_torch_values(a: BsrMatrix) -> BsrMatrix:
    if a._torch:
        return a
    values = (
        torch.as_tensor(a._values) if not hasattr(a._values, "__dlpack__") else torch.from_dlpack(a._values)
    )
    pattern = a._pattern.beside(values) if a.is_dynamic else a._pattern
    return BsrMatrix._make(pattern, values, a._transposed)


def _matmul(A, B, bias, activation, alpha, out, beta, out_dtype, options=None):
    if options is None:
        return _matmul_compiled(A, B, bias, activation, alpha, out, beta, out_dtype)
    left = not is_sparse(A)
    a, b = (as_bsr(B, "B"), A) if left else (as_bsr(A, "A"), B)
    _products.check_beta(options.beta, out)
    a = _with_torch_values(a)
    kind = b.device.type
    if autocasts(b):
        with torch.autocast(kind, enabled=False):
            values, b, bias = cast(kind, a._values, b, bias)
            if bias is not None and isinstance(out, Tensor) and out.dtype == torch.float32:
                bias = bias.float()  # that of the result
            a = a if values is a._values else a.with_values(values)
            pair = (b, a) if left else (a, b)
            return _ops.matmul(
                *pair,
                out=out,
                alpha=alpha,
                beta=beta,
                bias=bias,
                activation=activation,
                out_dtype=out_dtype,
                allow_tf32=options.tf32,
                allow_dense=bool(options.flags & _abi.ALLOW_DENSE),
                deterministic=not options.flags & _abi.ALLOW_NONDETERMINISTIC,
            )
    word = activation or "none"
    if not plain(a._values, b, bias, out, *a._pattern.indices):
        if out_dtype is not None:
            raise NotImplementedError(
                "out_dtype is not offered where torch traces, nor for tensors that are not plain ones"
            )
        refuse_tf32(options.tf32, b)
        return _into(a, b, left, bias, word, options.alpha, out, options.beta)
    if out is None and out_dtype is None and torch.is_grad_enabled():
        result = differentiable(
            a._plans, a._values, b, bias, a._transposed, left, options.alpha, options.tf32
        )
        return result if options.activation == 0 else ACTIVATIONS[word](result)
    if torch.is_grad_enabled() and (
        b.requires_grad or a.requires_grad or (bias is not None and bias.requires_grad)
    ):
        raise RuntimeError(
            "out_dtype is given, and A, B or bias requires grad: gradients do not flow through it"
        )
    return _products.product(a, b, left, out, options)


def eager(a: BsrMatrix, b: Tensor, left: bool, options: _products.Options) -> Tensor:
    """matmul's plain torch case: exact tensors, no gradient, a new result."""
    result = forward(
        a._plans, a._values, a._transposed, b, left, options.bias, options.activation, options.alpha
    )
    a._follow()
    return result


def _gradient(A, B):
    """matmul's plain torch case where a gradient is wanted, without the checks above. None: it is another
    case."""
    left = type(A) is not BsrMatrix
    a, b = (B, A) if left else (A, B)
    if type(a) is not BsrMatrix or not a._torch or not torch.is_grad_enabled() or not isinstance(b, Tensor):
        return None
    values = a._values
    if (
        not (values.requires_grad or b.requires_grad)
        or b.layout is not torch.strided
        or b.is_nested
        or any_autocast()
    ):
        return None
    if not plain(values, b, *a._pattern.indices):
        return None
    return Product.of_plain(values, b, None, a._plans, a._transposed, left, 1.0)


# ---- sampled_matmul ----


def _sampled(X, Y, pattern, alpha, out, beta, tf32=None):
    compiling = torch.compiler.is_compiling()
    if compiling and not (isinstance(pattern, BsrMatrix) and pattern._torch):
        raise TypeError("pattern: inside torch.compile a BsrMatrix with torch values is expected")
    a = pattern if isinstance(pattern, BsrMatrix) else as_bsr(pattern, "pattern")
    if out is not None:
        raise RuntimeError(
            "out is given, and X or Y needs gradients, autocast or tracing, which do not go through out"
        )
    for x, name in ((X, "X"), (Y, "Y")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, as the other one is")
    if not compiling:
        alpha, beta = _products.number(alpha, "alpha"), _products.number(beta, "beta")
    _products.check_beta(beta, out)
    x, y = (Y.t(), X.t()) if a._transposed else (X, Y)
    pattern = a._pattern.like(x)
    if compiling or not plain(x, y, *pattern.indices) or autocasts(x):
        if not autocasts(x):
            refuse_tf32(tf32, x)
        index = alike(x, *index_tensors(pattern, x.device))
        values = operator_sampled(pattern, x, y, index, alpha)
    else:
        values = differentiable_sampled(x, y, pattern, alpha, tf32)
    return BsrMatrix._make(pattern, values, a._transposed)


_ops._surrounded = modes.surrounded
# Cheaper than is_compiling. torch.export without dynamo brings fake tensors, which are not plain.
_ops._compiling = torch.compiler.is_dynamo_compiling
_ops._torch_matmul = _matmul
_ops._torch_sampled = _sampled
_ops._torch_eager = eager
_ops._torch_gradient = _gradient
_ops._forward_ad, _ops._refuse_tangents = forward_ad, refuse_tangents
# There is no __torch_function__ on BsrMatrix: torch.compile (2.11) swaps the sides of `A @ b` when it finds
# one. Without it the operator @ breaks the graph, which is slower and right; sparse_autotune.matmul(A, b) is
# traced.
