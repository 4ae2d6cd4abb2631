"""The operators ``torch.ops.sparse_autotune.attention`` and ``attention_backward``, as in operators.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _attention
from .._attention import Spec
from .._pattern import Pattern
from . import masks, private
from .attention import ONCE, backward, forward
from .operators import cast, library, tags
from .patterns import Unchanged
from .private import check

_OPTIONS = (
    "Tensor? mask=None, int[] mask_shape=[], bool causal=False, int? window=None, float? scale=None, "
    "bool deterministic=True, bool? allow_tf32=None"
)
library.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool lse=False) -> (Tensor, Tensor)",
    tags=tags,
)
library.define(
    f"attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}) -> "
    "(Tensor, Tensor, Tensor)",
    tags=tags,
)


_DEFAULTS = (None, (), False, None, None, True, None)  # of _OPTIONS


def _known(mask: Tensor | None, mask_shape: Any) -> Pattern | None:
    return None if mask is None else masks.pattern_of(mask, tuple(mask_shape))


def _attention_impl(
    q,
    k,
    v,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
    lse=False,
):
    with torch.no_grad():
        out, sums = forward(
            q, k, v, _known(mask, mask_shape), Spec(causal, window, scale, deterministic, allow_tf32), lse
        )
    # torch's own attention chooses its strides, but a trace was promised those of the fake kernel.
    if out.stride() != (wanted := _like(q)).stride():
        out = wanted.copy_(out)
    return out, q.new_empty((0,), dtype=torch.float32) if sums is None else sums


def _backward_impl(
    grad,
    q,
    k,
    v,
    out,
    lse,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
):
    with torch.no_grad():
        return backward(
            q,
            k,
            v,
            out,
            lse,
            grad,
            _known(mask, mask_shape),
            Spec(causal, window, scale, deterministic, allow_tf32),
        )


for _device in ("CPU", "CUDA"):
    library.impl("attention", _attention_impl, _device)
    library.impl("attention_backward", _backward_impl, _device)


def _like(x: Tensor) -> Tensor:
    if not _attention.rows_before_heads(x.shape, x.stride()):
        return x.new_empty(x.shape)
    return x.new_empty((*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1])).transpose(-3, -2)


@torch.library.register_fake("sparse_autotune::attention", lib=library)
def _attention_fake(
    q,
    k,
    v,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
    lse=False,
):
    check(
        q.dtype == k.dtype and q.dtype == v.dtype,
        lambda: f"q, k and v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; expected one",
    )
    _attention.check_shapes(q.shape, k.shape, v.shape)
    return _like(q), q.new_empty(q.shape[:-1] if lse else (0,), dtype=torch.float32)


@torch.library.register_fake("sparse_autotune::attention_backward", lib=library)
def _backward_fake(
    grad,
    q,
    k,
    v,
    out,
    lse,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
):
    return _like(q), _like(k), _like(v)


def _setup(ctx, inputs, output):
    q, k, v, mask, *facts, lse = inputs
    out, sums = output
    ctx.mark_non_differentiable(sums)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, sums)  # as _Attention does
    ctx.index, ctx.facts, ctx.lse = Unchanged(mask), (list(facts[0]), *facts[1:]), lse


def _grads(ctx, grad, _):
    if grad is None:
        return (None,) * 11
    q, k, v, out, sums = ctx.saved_tensors
    words = *ctx.index.get(), *ctx.facts
    if not ctx.lse:
        out, sums = torch.ops.sparse_autotune.attention(q, k, v, *words, True)
    return *torch.ops.sparse_autotune.attention_backward(grad, q, k, v, out, sums, *words), *(None,) * 8


def _no_setup(ctx, inputs, output):
    pass


def _no_grads(ctx, *grads):
    raise NotImplementedError(ONCE)


torch.library.register_autograd("sparse_autotune::attention", _grads, setup_context=_setup, lib=library)
torch.library.register_autograd(
    "sparse_autotune::attention_backward", _no_grads, setup_context=_no_setup, lib=library
)


def _vmap(name: str, count: int) -> Any:
    """A batch of batches is a larger batch. Where the mask is batched too, or there are no heads, or
    sequences are packed, each item is computed alone. `count`: tensors before the mask."""

    def rule(info, in_dims, *inputs):
        operator, size = getattr(torch.ops.sparse_autotune, name), info.batch_size
        # torch leaves out arguments that have their default values.
        left_out = (*_DEFAULTS, False)[len(inputs) - 3 :] if count == 3 else _DEFAULTS[len(inputs) - 6 :]
        inputs, in_dims = (*inputs, *left_out), (*in_dims, *(None for _ in left_out))
        tensors, rest, dims = inputs[: count + 1], inputs[count + 1 :], in_dims[: count + 1]
        q, at = (tensors[0], dims[0]) if count == 3 else (tensors[1], dims[1])
        packed = inputs[count] is not None and rest[0][5] > 0
        if dims[count] is None and not packed and q.dim() - (at is not None) >= 3:
            batched = [
                x.unsqueeze(0).expand(size, *x.shape) if d is None else x.movedim(d, 0)
                for x, d in zip(tensors[:count], dims)
            ]
            found = operator(*batched, inputs[count], *rest)
        else:
            items = [
                operator(*(x if d is None else x.select(d, i) for x, d in zip(tensors, dims)), *rest)
                for i in range(size)
            ]
            found = tuple(torch.stack(x) for x in zip(*items))
        if count == 3 and not rest[-1]:
            return (found[0], found[0].new_empty((0,), dtype=torch.float32)), (0, None)
        return found, (0,) * len(found)

    return rule


torch.library.register_vmap("sparse_autotune::attention", _vmap("attention", 3), lib=library)
torch.library.register_vmap(
    "sparse_autotune::attention_backward", _vmap("attention_backward", 6), lib=library
)


def _register_autocast(device: str, key: str) -> None:
    uncast = private.without_autocast(device)

    def autocast(q, k, v, *rest, **words):
        with uncast():
            return torch.ops.sparse_autotune.attention(*cast(device, q, k, v), *rest, **words)

    library.impl("attention", autocast, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
