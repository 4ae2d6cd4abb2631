"""The operators ``torch.ops.sparse_autotune.matmul`` and ``sampled``.

They take the parts of a matrix as plain tensors and find its pattern by the storages of its indices. Each
has kernels for the CPU and CUDA, a fake kernel (shapes only), gradients, a rule for vmap, and kernels for
autocast.

`fixed` says that the values are fixed. The plans of such values are found by their address, where a frozen
matrix or layer has them; other values are read at each call, as without it."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _fixed, _products
from .._matrix import refuse_gradients
from . import private
from .eager import forward, forward_sampled, product_grads
from .patterns import Unchanged, pattern_of
from .private import check

library = torch.library.Library("sparse_autotune", "DEF")
tags = (torch.Tag.pt2_compliant_tag,)
library.define(
    "matmul(Tensor values, Tensor row_ptr, Tensor col_idx, Tensor b, Tensor? bias, int[] shape, bool "
    "transpose=False, bool left=False, float alpha=1.0, str activation='none', bool fixed=False) -> Tensor",
    tags=tags,
)
library.define(
    "sampled(Tensor x, Tensor y, Tensor row_ptr, Tensor col_idx, int[] shape, int[] block, float alpha=1.0) "
    "-> Tensor",
    tags=tags,
)


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
    fixed=False,
):
    if values.dim() != 3:
        raise ValueError(
            f"values has {values.dim()} dimensions; expected 3: stored blocks, block rows, block columns"
        )
    pattern = pattern_of(row_ptr, col_idx, tuple(shape), tuple(values.shape[1:]))
    if values.shape[0] != pattern.stored_blocks:
        raise ValueError(f"values has {values.shape[0]} blocks; col_idx has {pattern.stored_blocks}")
    with torch.no_grad():
        blocks = values.contiguous()
        held = _fixed.find(values.data_ptr(), pattern) if fixed and blocks is values else None
        return forward(
            pattern if held is None else held,
            blocks,
            transpose,
            b,
            left,
            bias,
            _products.activation_code(activation),
            alpha,
        )


def _sampled_impl(x, y, row_ptr, col_idx, shape, block, alpha=1.0):
    with torch.no_grad():
        return forward_sampled(x, y, pattern_of(row_ptr, col_idx, tuple(shape), tuple(block)), alpha)


for _key in ("CPU", "CUDA"):
    library.impl("matmul", _matmul_impl, _key)
    library.impl("sampled", _sampled_impl, _key)


def _check_meta(first, name, **others):
    """One operand on meta sends a call here, and what the others hold would be lost."""
    for other, t in others.items():
        same = t is None or (t.device.type == "meta") == (first.device.type == "meta")
        check(same, lambda: f"{other} is on {t.device} and {name} on {first.device}; expected one device")


def _check_product(values, row_ptr, col_idx, b, bias, shape, transpose, left):
    check(values.dim() == 3, lambda: f"values has {values.dim()} dimensions; expected 3")
    check(
        values.shape[1] > 0 and values.shape[2] > 0,
        lambda: f"values has blocks of {values.shape[1]}x{values.shape[2]}; expected sides of at least 1",
    )
    check(len(shape) == 2, lambda: f"shape has {len(shape)} entries; expected 2")
    check(row_ptr.dim() == 1 and col_idx.dim() == 1, lambda: "row_ptr and col_idx must have 1 dimension")
    check(b.dim() >= 1, lambda: "b has no dimensions; expected at least 1")
    check(
        values.dtype == b.dtype,
        lambda: f"values has dtype {values.dtype} and b {b.dtype}; expected one dtype",
    )
    check(
        values.device == b.device,
        lambda: f"values is on {values.device} and b on {b.device}; expected one device",
    )
    _check_meta(values, "values", row_ptr=row_ptr, col_idx=col_idx, bias=bias)
    check(
        values.shape[0] == col_idx.shape[0],
        lambda: f"values has {values.shape[0]} blocks and col_idx {col_idx.shape[0]}; expected as many",
    )
    rows, cols = (shape[1], shape[0]) if transpose else (shape[0], shape[1])
    inner, features = (rows, cols) if left else (cols, rows)
    have = b.shape[-1] if left or b.dim() == 1 else b.shape[-2]
    check(
        have == inner,
        lambda: f"b has shape {tuple(b.shape)}; expected {inner} {'columns' if left else 'rows'}",
    )
    check(bias is None or tuple(bias.shape) == (features,), lambda: f"bias must have shape ({features},)")
    return features


@torch.library.register_fake("sparse_autotune::matmul", lib=library)
def _matmul_fake(
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
    fixed=False,
):
    features = _check_product(values, row_ptr, col_idx, b, bias, shape, transpose, left)
    if left:
        return b.new_empty((*b.shape[:-1], features))
    return b.new_empty((features,)) if b.dim() == 1 else b.new_empty((*b.shape[:-2], features, b.shape[-1]))


@torch.library.register_fake("sparse_autotune::sampled", lib=library)
def _sampled_fake(x, y, row_ptr, col_idx, shape, block, alpha=1.0):
    check(x.dim() == 2 and y.dim() == 2, lambda: "x and y must have 2 dimensions")
    check(x.dtype == y.dtype, lambda: f"x has dtype {x.dtype} and y {y.dtype}; expected one dtype")
    _check_meta(x, "x", y=y, row_ptr=row_ptr, col_idx=col_idx)
    check(x.shape[0] == shape[0], lambda: f"x has {x.shape[0]} rows; expected {shape[0]}")
    check(y.shape[1] == shape[1], lambda: f"y has {y.shape[1]} columns; expected {shape[1]}")
    check(
        x.shape[1] == y.shape[0],
        lambda: f"x has {x.shape[1]} columns and y {y.shape[0]} rows; expected as many",
    )
    return x.new_empty((col_idx.shape[0], block[0], block[1]))


def _matmul_setup(ctx, inputs, output):
    values, row_ptr, col_idx, b, bias, shape, transpose, left, alpha, activation, fixed = inputs
    if fixed and ctx.needs_input_grad[0]:
        refuse_gradients(values, "unfreeze() to train them, or values.requires_grad_(False)")
    # As _Product does: with activation checkpointing a mode may see only one of the two.
    ctx.save_for_backward(values, b, *(() if activation == "none" else (bias,)))
    ctx.index = Unchanged(row_ptr, col_idx)
    ctx.facts = (list(shape), transpose, left, alpha, activation, None if bias is None else bias.dtype, fixed)


def _matmul_backward(ctx, grad):
    values, b, *bias = ctx.saved_tensors
    row_ptr, col_idx = ctx.index.get()
    shape, transpose, left, alpha, activation, bias_dtype, fixed = ctx.facts
    block = list(values.shape[1:])

    def product(v, x, t, side, s):
        return torch.ops.sparse_autotune.matmul(v, row_ptr, col_idx, x, None, shape, t, side, s, fixed=fixed)

    def sample(x, y, s):
        return torch.ops.sparse_autotune.sampled(x, y, row_ptr, col_idx, shape, block, s)

    if activation != "none":  # the value before it, and what the activation makes of the gradient there
        before = torch.ops.sparse_autotune.matmul(
            values, row_ptr, col_idx, b, *bias, shape, transpose, left, alpha, fixed=fixed
        )
        grad = grad * _slope(activation, before)
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4])
    d_values, d_b, d_bias = product_grads(
        needs, values, b, grad, bias_dtype, transpose, left, alpha, product, sample
    )
    return d_values, None, None, d_b, d_bias, None, None, None, None, None, None


def _slope(activation: str, z: Tensor) -> Tensor:
    if activation == "relu":
        return (~(z <= 0)).to(z.dtype)  # NaN lets it through, as torch's does
    if activation == "silu":
        s = torch.sigmoid(z)
        return s * (1 + z * (1 - s))
    return 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * (2 * torch.pi) ** -0.5


def _sampled_setup(ctx, inputs, output):
    x, y, row_ptr, col_idx, shape, block, alpha = inputs
    ctx.save_for_backward(x, y)  # as _Sampled does
    ctx.index, ctx.facts = Unchanged(row_ptr, col_idx), (list(shape), alpha)


def _sampled_backward(ctx, grad):
    x, y = ctx.saved_tensors
    (row_ptr, col_idx), (shape, alpha) = ctx.index.get(), ctx.facts
    d_x = d_y = None
    g = grad.contiguous()
    if ctx.needs_input_grad[0]:
        d_x = torch.ops.sparse_autotune.matmul(g, row_ptr, col_idx, y.t(), None, shape, False, False, alpha)
    if ctx.needs_input_grad[1]:
        d_y = torch.ops.sparse_autotune.matmul(g, row_ptr, col_idx, x.t(), None, shape, False, True, alpha)
    return d_x, d_y, None, None, None, None, None


torch.library.register_autograd(
    "sparse_autotune::matmul", _matmul_backward, setup_context=_matmul_setup, lib=library
)
torch.library.register_autograd(
    "sparse_autotune::sampled", _sampled_backward, setup_context=_sampled_setup, lib=library
)


def _matmul_vmap(
    info,
    in_dims,
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
    fixed=False,
):
    """A batch of b is one product; anything else that is batched is done one by one."""
    product = torch.ops.sparse_autotune.matmul
    if in_dims[3] is not None and all(d is None for i, d in enumerate(in_dims[:5]) if i != 3):
        b = b.movedim(in_dims[3], 0)
        if not left and b.dim() == 2:  # vectors: A @ b of each is b @ A.T of all
            transpose, left = not transpose, True
        return product(values, row_ptr, col_idx, b, bias, shape, transpose, left, alpha, activation, fixed), 0
    items = [
        [t if d is None else t.select(d, i) for t, d in zip((values, row_ptr, col_idx, b, bias), in_dims)]
        for i in range(info.batch_size)
    ]
    return torch.stack([product(*item, shape, transpose, left, alpha, activation) for item in items]), 0


def _sampled_vmap(info, in_dims, x, y, row_ptr, col_idx, shape, block, alpha=1.0):
    items = [
        [t if d is None else t.select(d, i) for t, d in zip((x, y, row_ptr, col_idx), in_dims)]
        for i in range(info.batch_size)
    ]
    return torch.stack([torch.ops.sparse_autotune.sampled(*item, shape, block, alpha) for item in items]), 0


torch.library.register_vmap("sparse_autotune::matmul", _matmul_vmap, lib=library)
torch.library.register_vmap("sparse_autotune::sampled", _sampled_vmap, lib=library)


def autocasts(t: Tensor) -> bool:
    kind = t.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)  # which raises for devices that have none


def cast(device: str, *tensors: Tensor | None) -> tuple:
    """The tensors as autocast wants them: float32 and 16 bits become its dtype, doubles stay, and what is on
    another device."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        t
        if t is None or t.device.type != device or not t.is_floating_point() or t.dtype == torch.float64
        else t.to(dtype)
        for t in tensors
    )


def _register_autocast(device: str, key: str) -> None:
    uncast = private.without_autocast(device)

    def matmul(
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
        fixed=False,
    ):
        with uncast():
            given = values
            values, b, bias = cast(device, values, b, bias)
            fixed = fixed and values is given  # else they are new ones at each call
            return torch.ops.sparse_autotune.matmul(
                values, row_ptr, col_idx, b, bias, shape, transpose, left, alpha, activation, fixed
            )

    def sampled(x, y, row_ptr, col_idx, shape, block, alpha=1.0):
        with uncast():
            x, y = cast(device, x, y)
            return torch.ops.sparse_autotune.sampled(x, y, row_ptr, col_idx, shape, block, alpha)

    library.impl("matmul", matmul, key)
    library.impl("sampled", sampled, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
