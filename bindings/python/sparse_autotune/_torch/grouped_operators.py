"""The operators ``torch.ops.sparse_autotune.grouped_matmul`` and ``grouped_weights``, as in operators.py.

Their offsets begin with 0: one more than groups."""

from __future__ import annotations

import torch

from .. import _products
from . import private
from .grouped import forward, matmul_grads, weight_grads, weights
from .operators import _check_meta, _slope, cast, library, tags
from .private import check

library.define(
    "grouped_matmul(Tensor x, Tensor w, Tensor offsets, Tensor? bias, str activation='none', float "
    "alpha=1.0) -> Tensor",
    tags=tags,
)
library.define("grouped_weights(Tensor x, Tensor z, Tensor offsets, float alpha=1.0) -> Tensor", tags=tags)


def _matmul_impl(x, w, offsets, bias, activation="none", alpha=1.0):
    _products.activation_code(activation)
    with torch.no_grad():
        return forward(x, w, offsets, bias, activation, alpha)


def _weights_impl(x, z, offsets, alpha=1.0):
    with torch.no_grad():
        return weights(x, z, offsets, alpha)


for _key in ("CPU", "CUDA"):
    library.impl("grouped_matmul", _matmul_impl, _key)
    library.impl("grouped_weights", _weights_impl, _key)


def _check_pair(x, other, name):
    check(
        x.dtype == other.dtype, lambda: f"x has dtype {x.dtype} and {name} {other.dtype}; expected one dtype"
    )
    check(x.device == other.device, lambda: f"x is on {x.device} and {name} on {other.device}; expected one")


def _check_offsets(offsets):
    check(offsets.dim() == 1, lambda: f"offsets has {offsets.dim()} dimensions; expected 1")
    check(
        offsets.dtype in (torch.int32, torch.int64),
        lambda: f"offsets has dtype {offsets.dtype}; expected int32 or int64",
    )


@torch.library.register_fake("sparse_autotune::grouped_matmul", lib=library)
def _matmul_fake(x, w, offsets, bias, activation="none", alpha=1.0):
    _products.activation_code(activation)
    check(x.dim() == 2 and w.dim() == 3, lambda: "x must have 2 dimensions and w 3")
    _check_pair(x, w, "w")
    _check_offsets(offsets)
    _check_meta(x, "x", offsets=offsets, bias=bias)
    check(
        x.shape[1] == w.shape[1],
        lambda: f"x has {x.shape[1]} columns and w matrices of {w.shape[1]} rows; expected as many",
    )
    check(
        offsets.shape[0] == w.shape[0] + 1,
        lambda: f"offsets has {offsets.shape[0]} entries; expected {w.shape[0] + 1}, one more than groups",
    )
    if bias is not None:
        check(
            bias.dim() == 2 and bias.shape[0] == w.shape[0] and bias.shape[1] == w.shape[2],
            lambda: f"bias has shape {tuple(bias.shape)}; expected ({w.shape[0]}, {w.shape[2]})",
        )
    return x.new_empty((x.shape[0], w.shape[2]))


@torch.library.register_fake("sparse_autotune::grouped_weights", lib=library)
def _weights_fake(x, z, offsets, alpha=1.0):
    check(x.dim() == 2 and z.dim() == 2, lambda: "x and z must have 2 dimensions")
    _check_pair(x, z, "z")
    _check_offsets(offsets)
    _check_meta(x, "x", offsets=offsets)
    check(x.shape[0] == z.shape[0], lambda: f"x has {x.shape[0]} rows and z {z.shape[0]}; expected as many")
    check(offsets.shape[0] > 0, lambda: "offsets has no entries; expected one more than groups")
    return x.new_empty((offsets.shape[0] - 1, x.shape[1], z.shape[1]))


def _matmul_setup(ctx, inputs, output):
    x, w, offsets, bias, activation, alpha = inputs
    ctx.save_for_backward(x, w, offsets, *(() if activation == "none" else (bias,)))
    ctx.facts = (activation, alpha, None if bias is None else bias.dtype)


def _matmul_backward(ctx, grad):
    x, w, offsets, *bias = ctx.saved_tensors
    activation, alpha, bias_dtype = ctx.facts
    operators = torch.ops.sparse_autotune
    if activation != "none":  # the value before it, and what the activation makes of the gradient there
        grad = grad * _slope(activation, operators.grouped_matmul(x, w, offsets, *bias, "none", alpha))
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
    d_x, d_w, d_bias = matmul_grads(
        needs,
        x,
        w,
        grad,
        bias_dtype,
        alpha,
        lambda a, b, s: operators.grouped_matmul(a, b, offsets, None, "none", s),
        lambda a, b, s: operators.grouped_weights(a, b, offsets, s),
    )
    return d_x, d_w, None, d_bias, None, None


def _weights_setup(ctx, inputs, output):
    x, z, offsets, alpha = inputs
    ctx.save_for_backward(x, z, offsets)
    ctx.alpha = alpha


def _weights_backward(ctx, grad):
    x, z, offsets = ctx.saved_tensors
    product = torch.ops.sparse_autotune.grouped_matmul
    d_x, d_z = weight_grads(
        ctx.needs_input_grad,
        x,
        z,
        grad,
        ctx.alpha,
        lambda a, b, s: product(a, b, offsets, None, "none", s),
    )
    return d_x, d_z, None, None


torch.library.register_autograd(
    "sparse_autotune::grouped_matmul", _matmul_backward, setup_context=_matmul_setup, lib=library
)
torch.library.register_autograd(
    "sparse_autotune::grouped_weights", _weights_backward, setup_context=_weights_setup, lib=library
)


def _one_by_one(name, count):
    """A rule for vmap: each item is computed alone. `count`: tensors among the arguments."""

    def rule(info, in_dims, *inputs):
        operator = getattr(torch.ops.sparse_autotune, name)
        tensors, rest, dims = inputs[:count], inputs[count:], in_dims[:count]
        items = [
            operator(*(t if d is None else t.select(d, i) for t, d in zip(tensors, dims)), *rest)
            for i in range(info.batch_size)
        ]
        return torch.stack(items), 0

    return rule


torch.library.register_vmap("sparse_autotune::grouped_matmul", _one_by_one("grouped_matmul", 4), lib=library)
torch.library.register_vmap(
    "sparse_autotune::grouped_weights", _one_by_one("grouped_weights", 3), lib=library
)


def _register_autocast(device: str, key: str) -> None:
    uncast = private.without_autocast(device)

    def matmul(x, w, offsets, bias, activation="none", alpha=1.0):
        with uncast():
            x, w, bias = cast(device, x, w, bias)
            return torch.ops.sparse_autotune.grouped_matmul(x, w, offsets, bias, activation, alpha)

    def grouped_weights(x, z, offsets, alpha=1.0):
        with uncast():
            x, z = cast(device, x, z)
            return torch.ops.sparse_autotune.grouped_weights(x, z, offsets, alpha)

    library.impl("grouped_matmul", matmul, key)
    library.impl("grouped_weights", grouped_weights, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
