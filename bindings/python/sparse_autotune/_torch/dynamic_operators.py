"""The operators ``torch.ops.sparse_autotune.dynamic_matmul`` and ``dynamic_sampled``, as in operators.py.

They read row_ptr and col_idx where they are. `density` and `skew` are what is expected of them, 0 for
nothing; a matrix has as many places for blocks as col_idx has entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _products
from .._dynamic import DynamicPattern, check_indices
from . import private
from .eager import forward, forward_sampled, product_grads
from .operators import _check_meta, _matmul_fake, _sampled_fake, _slope, cast, library, tags
from .private import check

library.define(
    "dynamic_matmul(Tensor values, Tensor row_ptr, Tensor col_idx, Tensor b, Tensor? bias, int[] shape, bool "
    "transpose=False, bool left=False, float alpha=1.0, str activation='none', float density=0.0, float "
    "skew=0.0) -> Tensor",
    tags=tags,
)
library.define(
    "dynamic_sampled(Tensor x, Tensor y, Tensor row_ptr, Tensor col_idx, int[] shape, int[] block, float "
    "alpha=1.0, float density=0.0, float skew=0.0) -> Tensor",
    tags=tags,
)


def _pattern(row_ptr, col_idx, shape, block, capacity, density, skew) -> DynamicPattern:
    for sizes, name in ((shape, "shape"), (block, "block")):
        if len(sizes) != 2 or min(sizes) < (name == "block"):
            raise ValueError(f"{name} is {sizes}; expected two sizes of at least {int(name == 'block')}")
    row_ptr, col_idx = row_ptr.contiguous(), col_idx.contiguous()
    check_indices(row_ptr, col_idx, tuple(shape), tuple(block), capacity)
    return DynamicPattern(row_ptr, col_idx, tuple(shape), tuple(block), (density, skew))


def _matmul_impl(
    values,
    row_ptr,
    col_idx,
    b,
    bias,
    shape,
    transpose=False,
    left=False,
    alpha=1.0,
    activation="none",
    density=0.0,
    skew=0.0,
):
    if values.dim() != 3:
        raise ValueError(f"values has {values.dim()} dimensions; expected 3: blocks, block rows, columns")
    pattern = _pattern(row_ptr, col_idx, shape, values.shape[1:], values.shape[0], density, skew)
    code = _products.activation_code(activation)
    with torch.no_grad():
        return forward(pattern, values.contiguous(), transpose, b, left, bias, code, alpha)


def _sampled_impl(x, y, row_ptr, col_idx, shape, block, alpha=1.0, density=0.0, skew=0.0):
    pattern = _pattern(row_ptr, col_idx, shape, block, col_idx.numel(), density, skew)
    with torch.no_grad():
        return forward_sampled(x, y, pattern, alpha)


for _key in ("CPU", "CUDA"):
    library.impl("dynamic_matmul", _matmul_impl, _key)
    library.impl("dynamic_sampled", _sampled_impl, _key)


def _check_indices(row_ptr, col_idx):
    check(row_ptr.dim() == 1 and col_idx.dim() == 1, lambda: "row_ptr and col_idx must have 1 dimension")
    check(
        row_ptr.dtype == col_idx.dtype and row_ptr.dtype in (torch.int32, torch.int64),
        lambda: (
            f"row_ptr has dtype {row_ptr.dtype} and col_idx {col_idx.dtype}; expected int32 or int64, alike"
        ),
    )
    _check_meta(row_ptr, "row_ptr", col_idx=col_idx)


@torch.library.register_fake("sparse_autotune::dynamic_matmul", lib=library)
def _dynamic_matmul_fake(values, row_ptr, col_idx, b, bias, shape, *words, **named):
    _check_indices(row_ptr, col_idx)
    words, named = words[:4], {k: v for k, v in named.items() if k not in ("density", "skew")}
    return _matmul_fake(values, row_ptr, col_idx, b, bias, shape, *words, **named)


@torch.library.register_fake("sparse_autotune::dynamic_sampled", lib=library)
def _dynamic_sampled_fake(x, y, row_ptr, col_idx, shape, block, *_words, **_named):
    _check_indices(row_ptr, col_idx)
    return _sampled_fake(x, y, row_ptr, col_idx, shape, block)


def _matmul_setup(ctx, inputs, output):
    values, row_ptr, col_idx, b, bias, *facts = inputs
    activation = facts[4]
    # As Product does: with activation checkpointing a mode may see only one of the two.
    ctx.save_for_backward(values, b, row_ptr, col_idx, *(() if activation == "none" else (bias,)))
    ctx.facts = None if bias is None else bias.dtype, facts


def _matmul_backward(ctx, grad):
    values, b, row_ptr, col_idx, *bias = ctx.saved_tensors
    bias_dtype, (shape, transpose, left, alpha, activation, *hints) = ctx.facts
    operators, block = torch.ops.sparse_autotune, list(values.shape[1:])

    def product(v, x, t, side, s, bias=None):
        return operators.dynamic_matmul(v, row_ptr, col_idx, x, bias, shape, t, side, s, "none", *hints)

    def sample(x, y, s):
        return operators.dynamic_sampled(x, y, row_ptr, col_idx, shape, block, s, *hints)

    if activation != "none":  # the value before it, and what the activation makes of the gradient there
        grad = grad * _slope(activation, product(values, b, transpose, left, alpha, *bias))
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4])
    d_values, d_b, d_bias = product_grads(
        needs, values, b, grad, bias_dtype, transpose, left, alpha, product, sample
    )
    return d_values, None, None, d_b, d_bias, *[None] * 7


def _sampled_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.facts = inputs[4:]


def _sampled_backward(ctx, grad):
    x, y, row_ptr, col_idx = ctx.saved_tensors
    shape, _, alpha, *hints = ctx.facts
    g, d_x, d_y = grad.contiguous(), None, None

    def product(b, left):
        words = shape, False, left, alpha, "none", *hints
        return torch.ops.sparse_autotune.dynamic_matmul(g, row_ptr, col_idx, b, None, *words)

    if ctx.needs_input_grad[0]:
        d_x = product(y.t(), False)
    if ctx.needs_input_grad[1]:
        d_y = product(x.t(), True)
    return d_x, d_y, *[None] * 7


torch.library.register_autograd(
    "sparse_autotune::dynamic_matmul", _matmul_backward, setup_context=_matmul_setup, lib=library
)
torch.library.register_autograd(
    "sparse_autotune::dynamic_sampled", _sampled_backward, setup_context=_sampled_setup, lib=library
)


def _one_by_one(product, info, in_dims, tensors, words) -> tuple[Tensor, int]:
    items = [
        [t if d is None else t.select(d, i) for t, d in zip(tensors, in_dims)] for i in range(info.batch_size)
    ]
    return torch.stack([product(*item, *words) for item in items]), 0


def _matmul_vmap(info, in_dims, values, row_ptr, col_idx, b, bias, shape, *words):
    """A batch of b alone is one product, of matrices; all else, masks too, is done one by one."""
    product, words = torch.ops.sparse_autotune.dynamic_matmul, (shape, *words)
    if all((d is None) == (i != 3) for i, d in enumerate(in_dims[:5])) and b.dim() > 2:
        return product(values, row_ptr, col_idx, b.movedim(in_dims[3], 0), bias, *words), 0
    return _one_by_one(product, info, in_dims, (values, row_ptr, col_idx, b, bias), words)


def _sampled_vmap(info, in_dims, x, y, row_ptr, col_idx, *words):
    product = torch.ops.sparse_autotune.dynamic_sampled
    return _one_by_one(product, info, in_dims, (x, y, row_ptr, col_idx), words)


torch.library.register_vmap("sparse_autotune::dynamic_matmul", _matmul_vmap, lib=library)
torch.library.register_vmap("sparse_autotune::dynamic_sampled", _sampled_vmap, lib=library)


def _register_autocast(device: str, key: str) -> None:
    uncast = private.without_autocast(device)

    def matmul(values, row_ptr, col_idx, b, bias, *words, **named):
        with uncast():
            values, b, bias = cast(device, values, b, bias)
            product = torch.ops.sparse_autotune.dynamic_matmul
            return product(values, row_ptr, col_idx, b, bias, *words, **named)

    def sampled(x, y, *words, **named):
        with uncast():
            x, y = cast(device, x, y)
            return torch.ops.sparse_autotune.dynamic_sampled(x, y, *words, **named)

    library.impl("dynamic_matmul", matmul, key)
    library.impl("dynamic_sampled", sampled, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
