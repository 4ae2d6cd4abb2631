"""Products of plain tensors in eager code, with and without gradients, past the dispatcher.

`forward` is the product alone: by a runner where one knows such tensors, else by the full path, which gives
the runner its plan. `Product` and `Sampled` are autograd functions around it. `differentiable` chooses.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import _products
from .._dynamic import AnyPattern
from .._fixed import Fixed
from .._matrix import BsrMatrix, refuse_gradients
from .._quick import runner
from .modes import plain
from .patterns import index_tensors
from .private import forward_ad
from .quick import install
from .refusals import ReverseOnly, refuse_tangents

Plans = AnyPattern | Fixed

ACTIVATIONS = {
    "none": None,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


# ---- without gradients ----


def forward(
    plans: Plans,
    values: Tensor,
    transposed: bool,
    b: Tensor,
    left: bool,
    bias: Tensor | None,
    activation: int,
    alpha: float,
    tf32: bool | None = None,
) -> Tensor:
    """The product of plain tensors. `tf32`: None is what torch is set to, which a runner asks torch for.
    `plans`: the pattern, or the plans of these very values, where they are fixed."""
    if forward_ad._current_level >= 0:
        refuse_tangents(values, b, bias)
    quick = (
        None
        if tf32 is not None
        else runner(plans, (transposed, left, activation, alpha, bias is not None), alpha)
    )
    inputs = values, b, *(() if bias is None else (bias,)), *plans.pattern.indices
    result = None if quick is None else quick.run_inside(*inputs)
    if result is not None:
        return result
    result, made = _products.product_with_plan(
        _bare(plans, values, transposed),
        b,
        left,
        None,
        _options(alpha, bias, activation, tf32),
        quick is not None,
    )
    if quick is not None:
        install(quick, inputs, (result,), made)
    return result


def _options(alpha: float, bias: Any, activation: int, tf32: bool | None = None) -> _products.Options:
    options = _products.Options(alpha, 0.0, bias, allow_tf32=tf32)
    options.activation = activation
    return options


def forward_sampled(
    x: Tensor, y: Tensor, pattern: AnyPattern, alpha: float, tf32: bool | None = None
) -> Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents(x, y)
    return _products.sampled_values(x, y, pattern, alpha, tf32)


def _bare(plans: Plans, values: Tensor, transposed: bool) -> BsrMatrix:
    """A matrix for use inside this package, without what adopt() gives."""
    matrix = BsrMatrix.__new__(BsrMatrix)
    matrix._pattern, matrix._fixed = plans.pattern, plans if plans.fixed_values else None
    matrix._values, matrix._transposed, matrix._torch = values, transposed, True
    return matrix


# ---- gradients: the formulas are those of the operators, too ----


def _fold(t: Tensor) -> Tensor:
    """(..., rows, n) as (rows, everything else)."""
    if t.dim() <= 2:
        return t if t.dim() == 2 else t.unsqueeze(-1)
    return t.movedim(-2, 0).reshape(t.shape[-2], math.prod(t.shape[:-2]) * t.shape[-1])


def _rows(t: Tensor) -> Tensor:
    """(..., n) as (everything else, n)."""
    if t.dim() <= 2:
        return t if t.dim() == 2 else t.unsqueeze(0)
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def product_grads(
    needs: tuple,
    values: Tensor,
    b: Tensor,
    grad: Tensor,
    bias_dtype: Any,
    transposed: bool,
    left: bool,
    alpha: float,
    product: Any,
    sample: Any,
) -> tuple:
    """Gradients of values, b and bias, as far as `needs` says. They are products themselves: the caller gives
    `product(values, b, transposed, left, alpha)` and `sample(x, y, alpha)`."""
    d_values = d_b = d_bias = None
    g = grad if grad.dtype == b.dtype else grad.to(b.dtype)
    if needs[1]:
        d_b = product(values, g, not transposed, left, alpha)
    if needs[0]:
        if left:
            x, y = _rows(b), _rows(g)
            d_values = sample(y.t(), x, alpha) if transposed else sample(x.t(), y, alpha)
        else:
            x, y = _fold(g), _fold(b)
            d_values = sample(y, x.t(), alpha) if transposed else sample(x, y.t(), alpha)
    if needs[2]:
        d_bias = _rows(grad).sum(0) if left else _fold(grad).sum(1)
        if d_bias.dtype != bias_dtype:
            d_bias = d_bias.to(bias_dtype)
    return d_values, d_b, d_bias


class Product(ReverseOnly):
    """matmul: (values, b, bias) to the product."""

    @staticmethod
    def forward(ctx, values, b, bias, plans, transposed, left, alpha, tf32=None):
        if plans.fixed_values and ctx.needs_input_grad[0]:
            refuse_gradients(values, "unfreeze() to train them, or values.requires_grad_(False)")
        ctx.save_for_backward(values, b, *plans.pattern.indices)
        ctx.facts = (plans, transposed, left, alpha, None if bias is None else bias.dtype, tf32)
        return forward(plans, values, transposed, b, left, bias, 0, alpha, tf32)

    @staticmethod
    def backward(ctx, grad):
        values, b, *indices = ctx.saved_tensors
        plans, transposed, left, alpha, bias_dtype, tf32 = ctx.facts
        if plans.fixed_values and plans.snapshot.values is not values:
            plans = plans.pattern  # what a hook made of the saved ones, for this pass alone
        if indices:
            plans = plans.with_indices(*indices)
        # The usual backward pass, which is not differentiated again: asked once for all of it.
        if not torch.is_grad_enabled() and plain(values, b, grad, *indices):

            def product(v, x, t, side, s):
                return forward(plans, v, t, x, side, None, 0, s, tf32)

            def sample(x, y, s):
                return forward_sampled(x, y, plans.pattern, s, tf32)
        else:

            def product(v, x, t, side, s):
                return differentiable(plans, v, x, None, t, side, s, tf32)

            def sample(x, y, s):
                return differentiable_sampled(x, y, plans.pattern, s, tf32)

        grads = product_grads(
            ctx.needs_input_grad, values, b, grad, bias_dtype, transposed, left, alpha, product, sample
        )
        return *grads, None, None, None, None, None


class Sampled(ReverseOnly):
    """sampled_matmul: (x, y) to the values."""

    @staticmethod
    def forward(ctx, x, y, pattern, alpha, tf32=None):
        ctx.save_for_backward(x, y, *pattern.indices)
        ctx.facts = (pattern, alpha, tf32)
        return forward_sampled(x, y, pattern, alpha, tf32)

    @staticmethod
    def backward(ctx, grad):
        x, y, *indices = ctx.saved_tensors
        pattern, alpha, tf32 = ctx.facts
        if indices:
            pattern = pattern.with_indices(*indices)
        d_x = d_y = None
        if ctx.needs_input_grad[0]:
            d_x = differentiable(pattern, grad.contiguous(), y.t(), None, False, False, alpha, tf32)
        if ctx.needs_input_grad[1]:
            d_y = differentiable(pattern, grad.contiguous(), x.t(), None, False, True, alpha, tf32)
        return d_x, d_y, None, None, None


def refuse_tf32(tf32: bool | None, b: Tensor) -> None:
    """For products that go through an operator: operators do as torch is set to."""
    if tf32 is not None and b.dtype == torch.float32:
        raise NotImplementedError(
            f"allow_tf32 is {tf32}; where torch traces, and for tensors that are not plain ones, only None "
            "is offered, which is what torch is set to"
        )


def operator_product(
    pattern: AnyPattern,
    values: Tensor,
    indices: tuple,
    b: Tensor,
    bias: Tensor | None,
    transposed: bool,
    left: bool,
    alpha: float,
    activation: str = "none",
    fixed: bool = False,
) -> Tensor:
    operators, parts, words = (
        torch.ops.sparse_autotune,
        (values, *indices, b, bias),
        (transposed, left, alpha),
    )
    if pattern.indices:
        return operators.dynamic_matmul(*parts, pattern.shape, *words, activation, *pattern.hints)
    return operators.matmul(*parts, pattern.shape, *words, activation, fixed)


def operator_sampled(pattern: AnyPattern, x: Tensor, y: Tensor, indices: tuple, alpha: float) -> Tensor:
    operators, parts = torch.ops.sparse_autotune, (x, y, *indices, pattern.shape, pattern.block, alpha)
    return operators.dynamic_sampled(*parts, *pattern.hints) if pattern.indices else operators.sampled(*parts)


def differentiable(
    plans: Plans,
    values: Tensor,
    b: Tensor,
    bias: Tensor | None,
    transposed: bool,
    left: bool,
    alpha: float,
    tf32: bool | None = None,
) -> Tensor:
    """The product with a gradient where one is wanted. What a backward pass is given may not be plain; then
    the operator computes it."""
    pattern = plans.pattern
    if not plain(values, b, bias, *pattern.indices):
        refuse_tf32(tf32, b)
        indices = index_tensors(pattern, values.device)
        return operator_product(
            pattern, values, indices, b, bias, transposed, left, alpha, fixed=plans.fixed_values
        )
    if torch.is_grad_enabled() and (
        values.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return Product.of_plain(values, b, bias, plans, transposed, left, alpha, tf32)
    return forward(plans, values, transposed, b, left, bias, 0, alpha, tf32)


def differentiable_sampled(
    x: Tensor,
    y: Tensor,
    pattern: AnyPattern,
    alpha: float,
    tf32: bool | None = None,
) -> Tensor:
    if not plain(x, y, *pattern.indices):
        refuse_tf32(tf32, x)
        return operator_sampled(pattern, x, y, index_tensors(pattern, x.device), alpha)
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
        return Sampled.of_plain(x, y, pattern, alpha, tf32)
    return forward_sampled(x, y, pattern, alpha, tf32)
