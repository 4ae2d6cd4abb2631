"""Products of groups, of torch tensors: by runners or the full path, with or without gradients, or by
operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _abi, _grouped, _products
from .._products import Options
from .calls import may_fuse
from .eager import ACTIVATIONS, refuse_tf32
from .modes import plain
from .operators import autocasts, cast
from .private import forward_ad
from .refusals import ReverseOnly, refuse_tangents
from .sharding import alike

# ---- one pass of plain tensors ----


def forward(x, w, offsets, bias, activation, alpha, tf32=None) -> Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents(x, w, bias)
    return _grouped.forward(x, w, offsets, bias, activation, alpha, tf32)


def weights(x, z, offsets, alpha, tf32=None) -> Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents(x, z)
    return _grouped.weights(x, z, offsets, alpha, tf32)


# ---- gradients: the formulas are those of the operators, too ----


def matmul_grads(
    needs: tuple,
    x: Tensor,
    w: Tensor,
    grad: Tensor,
    bias_dtype: Any,
    alpha: float,
    product: Callable,
    sums: Callable,
) -> tuple:
    """Gradients of x, w and bias, as far as `needs` says. The caller gives `product(x, w, alpha)` and
    `sums(x, z, alpha)`, the gradient to the weights."""
    g = grad if grad.dtype == x.dtype else grad.to(x.dtype)
    d_x = product(g, w.transpose(1, 2), alpha) if needs[0] else None
    d_w = sums(x, g, alpha) if needs[1] else None
    d_bias = None
    if needs[2]:  # sums of the rows of each group
        d_bias = sums(grad.new_ones((grad.shape[0], 1)), grad, 1.0).squeeze(1)
        d_bias = d_bias if d_bias.dtype == bias_dtype else d_bias.to(bias_dtype)
    return d_x, d_w, d_bias


def weight_grads(needs: tuple, x: Tensor, z: Tensor, grad: Tensor, alpha: float, product: Callable) -> tuple:
    d_x = product(z, grad.transpose(1, 2), alpha) if needs[0] else None
    d_z = product(x, grad, alpha) if needs[1] else None
    return d_x, d_z


class Grouped(ReverseOnly):
    """grouped_matmul: (x, w, offsets, bias) to the product."""

    @staticmethod
    def forward(ctx, x, w, offsets, bias, alpha, tf32=None):
        ctx.save_for_backward(x, w, offsets)
        ctx.facts = (alpha, None if bias is None else bias.dtype, tf32)
        return forward(x, w, offsets, bias, "none", alpha, tf32)

    @staticmethod
    def backward(ctx, grad):
        x, w, offsets = ctx.saved_tensors
        alpha, bias_dtype, tf32 = ctx.facts
        once = not torch.is_grad_enabled() and plain(x, w, offsets, grad)
        one, other = (_forward_once, weights) if once else (differentiable, differentiable_weights)
        needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
        d_x, d_w, d_bias = matmul_grads(
            needs,
            x,
            w,
            grad,
            bias_dtype,
            alpha,
            lambda a, b, s: one(a, b, offsets, None, s, tf32),
            lambda a, b, s: other(a, b, offsets, s, tf32),
        )
        return d_x, d_w, None, d_bias, None, None


def _forward_once(x, w, offsets, bias, alpha, tf32):
    return forward(x, w, offsets, bias, "none", alpha, tf32)


class Weights(ReverseOnly):
    """grouped_weights: (x, z, offsets) to the weights."""

    @staticmethod
    def forward(ctx, x, z, offsets, alpha, tf32=None):
        ctx.save_for_backward(x, z, offsets)
        ctx.facts = (alpha, tf32)
        return weights(x, z, offsets, alpha, tf32)

    @staticmethod
    def backward(ctx, grad):
        x, z, offsets = ctx.saved_tensors
        alpha, tf32 = ctx.facts
        d_x, d_z = weight_grads(
            ctx.needs_input_grad,
            x,
            z,
            grad,
            alpha,
            lambda a, b, s: differentiable(a, b, offsets, None, s, tf32),
        )
        return d_x, d_z, None, None, None


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def differentiable(x, w, offsets, bias, alpha, tf32=None) -> Tensor:
    """The product with a gradient where one is wanted. What a backward pass is given may not be plain; then
    the operator computes it."""
    if not plain(x, w, offsets, bias):
        refuse_tf32(tf32, x)
        return torch.ops.sparse_autotune.grouped_matmul(x, w, offsets, bias, "none", alpha)
    if _wants_gradient(x, w, bias):
        return Grouped.of_plain(x, w, offsets, bias, alpha, tf32)
    return forward(x, w, offsets, bias, "none", alpha, tf32)


def differentiable_weights(x, z, offsets, alpha, tf32=None) -> Tensor:
    if not plain(x, z, offsets):
        refuse_tf32(tf32, x)
        return torch.ops.sparse_autotune.grouped_weights(x, z, offsets, alpha)
    if _wants_gradient(x, z):
        return Weights.of_plain(x, z, offsets, alpha, tf32)
    return weights(x, z, offsets, alpha, tf32)


# ---- what grouped_matmul and grouped_weights call ----


def _into(out: Any, beta: float, result: Tensor, activation: str) -> Tensor:
    """A result of the operator, into out; the activation waits for beta * out."""
    if not isinstance(out, Tensor):
        raise TypeError(f"out is a {type(out).__name__}; expected a torch tensor, as x is")
    if out.shape != result.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; expected {tuple(result.shape)}")
    if out.dtype != result.dtype and not (out.dtype == torch.float32 and result.dtype.itemsize == 2):
        raise TypeError(f"out has dtype {out.dtype}; expected {result.dtype}")
    if out.device != result.device:
        raise ValueError(f"out is on {out.device} and x on {result.device}; expected one device")
    if beta != 0:
        result = result + beta * out
        result = result if activation == "none" else ACTIVATIONS[activation](result)
    return out.copy_(result)


def _check_traced(out_dtype: Any, alpha: Any, beta: Any, **tensors: Any) -> None:
    for name, t in tensors.items():
        if t is not None and not isinstance(t, Tensor):
            raise TypeError(f"{name}: where torch traces a torch tensor is expected")
    for x, name in ((alpha, "alpha"), (beta, "beta")):
        if isinstance(x, Tensor):
            raise TypeError(f"{name} is a tensor; inside torch.compile a number is expected")
    if out_dtype is not None:
        raise NotImplementedError(
            "out_dtype is not offered where torch traces, nor for tensors that are not plain ones"
        )


def _traced(x, w, offsets, bias, activation, alpha, out, beta, out_dtype):
    _check_traced(out_dtype, alpha, beta, x=x, w=w, offsets=offsets, bias=bias)
    _products.check_beta(beta, out)
    fused = activation != "none" and beta == 0 and may_fuse()
    now = activation if fused else "none"
    offsets, bias = alike(x, _grouped.from_zero(offsets, w), bias)
    result = torch.ops.sparse_autotune.grouped_matmul(x, w, offsets, bias, now, alpha)
    if activation != "none" and not fused and beta == 0:
        result = ACTIVATIONS[activation](result)
    return result if out is None else _into(out, beta, result, activation)


def _traced_weights(x, z, offsets, alpha, out, beta, out_dtype):
    _check_traced(out_dtype, alpha, beta, x=x, z=z, offsets=offsets)
    _products.check_beta(beta, out)
    (offsets,) = alike(x, offsets)
    result = torch.ops.sparse_autotune.grouped_weights(x, z, offsets, alpha)
    return result if out is None else _into(out, beta, result, "none")


def _words(options: Options) -> dict[str, Any]:
    return {
        "alpha": options.alpha,
        "beta": options.beta,
        "out_dtype": options.out_dtype,
        "allow_tf32": options.tf32,
        "deterministic": not options.flags & _abi.ALLOW_NONDETERMINISTIC,
    }


def _matmul(x, w, offsets, bias, activation, alpha, out, beta, out_dtype, options=None):
    word = "none" if activation is None else activation
    if options is None:  # torch.compile traces this: no Python that it cannot follow
        return _traced(x, w, offsets, bias, word, alpha, out, beta, out_dtype)
    if autocasts(x):
        kind = x.device.type
        with torch.autocast(kind, enabled=False):
            x, w, bias = cast(kind, x, w, bias)
            if bias is not None and isinstance(out, Tensor) and out.dtype == torch.float32:
                bias = bias.float()  # that of the result
            return _grouped.grouped_matmul(
                x, w, offsets, bias=bias, activation=activation, out=out, **_words(options)
            )
    if x.is_meta or not plain(x, w, offsets, bias, out):
        refuse_tf32(options.tf32, x)
        return _traced(x, w, offsets, bias, word, options.alpha, out, options.beta, out_dtype)
    offsets = _grouped.from_zero(offsets, w)
    if out_dtype is not None and _wants_gradient(x, w, bias):
        raise RuntimeError(
            "out_dtype is given, and x, w or bias requires grad: gradients do not flow through it"
        )
    if out is not None or out_dtype is not None or options.flags or not _wants_gradient(x, w, bias):
        if _wants_gradient(x, w, bias):
            raise NotImplementedError("deterministic=False is not offered where gradients are wanted")
        return _grouped.matmul_with_plan(x, w, offsets, out, options, False)[0]
    _products.check_beta(options.beta, out)
    result = Grouped.of_plain(x, w, offsets, bias, options.alpha, options.tf32)
    return result if word == "none" else ACTIVATIONS[word](result)


def _weights(x, z, offsets, alpha, out, beta, out_dtype, options=None):
    if options is None:
        return _traced_weights(x, z, offsets, alpha, out, beta, out_dtype)
    if autocasts(x):
        kind = x.device.type
        with torch.autocast(kind, enabled=False):
            x, z = cast(kind, x, z)
            return _grouped.grouped_weights(x, z, offsets, out=out, **_words(options))
    if x.is_meta or not plain(x, z, offsets, out):
        refuse_tf32(options.tf32, x)
        return _traced_weights(x, z, offsets, options.alpha, out, options.beta, out_dtype)
    if out is None and out_dtype is None and not options.flags:
        _products.check_beta(options.beta, out)
        return differentiable_weights(x, z, offsets, options.alpha, options.tf32)
    if _wants_gradient(x, z):
        raise RuntimeError(
            "out_dtype or deterministic=False is given, and x or z requires grad: gradients do not flow "
            "through it"
        )
    return _grouped.weights_with_plan(x, z, offsets, out, options, False)[0]


_grouped._torch_matmul, _grouped._torch_weights = _matmul, _weights
