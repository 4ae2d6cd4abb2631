"""The operators ``torch.ops.sparse_autotune.attention`` and ``attention_backward``, as in operators.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _attention
from .._attention import Spec
from .._pattern import Pattern
from . import masks, private
from .attention import ONCE, backward, backward_with_sinks, forward, forward_with_sinks
from .operators import cast, library, tags
from .patterns import Unchanged
from .private import check

_OPTIONS = (
    "Tensor? mask=None, int[] mask_shape=[], bool causal=False, int? window=None, float? scale=None, "
    "bool deterministic=True, bool? allow_tf32=None, float? softcap=None"
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


_DEFAULTS = (None, (), False, None, None, True, None, None)  # of _OPTIONS


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
    softcap=None,
    lse=False,
):
    with torch.no_grad():
        spec = Spec(causal, window, scale, deterministic, allow_tf32, None, softcap)
        out, sums = forward(q, k, v, _known(mask, mask_shape), spec, lse)
    # torch's own attention chooses its strides, but a trace was promised those of the fake kernel.
    if out.stride() != (wanted := _like(q, v.shape[-1])).stride():
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
    softcap=None,
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
            Spec(causal, window, scale, deterministic, allow_tf32, None, softcap),
        )


for _device in ("CPU", "CUDA"):
    library.impl("attention", _attention_impl, _device)
    library.impl("attention_backward", _backward_impl, _device)


def _like(x: Tensor, size: int | None = None) -> Tensor:
    """A tensor laid out as x is, with heads of another size."""
    size = x.shape[-1] if size is None else size
    if not _attention.rows_before_heads(x.shape, x.stride()):
        return x.new_empty((*x.shape[:-1], size))
    return x.new_empty((*x.shape[:-3], x.shape[-2], x.shape[-3], size)).transpose(-3, -2)


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
    softcap=None,
    lse=False,
):
    check(
        q.dtype == k.dtype and q.dtype == v.dtype,
        lambda: f"q, k and v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; expected one",
    )
    _attention.check_shapes(q.shape, k.shape, v.shape)
    return _like(q, v.shape[-1]), q.new_empty(q.shape[:-1] if lse else (0,), dtype=torch.float32)


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
    softcap=None,
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
        return (None,) * 12
    q, k, v, out, sums = ctx.saved_tensors
    words = *ctx.index.get(), *ctx.facts
    if not ctx.lse:
        out, sums = torch.ops.sparse_autotune.attention(q, k, v, *words, True)
    return *torch.ops.sparse_autotune.attention_backward(grad, q, k, v, out, sums, *words), *(None,) * 9


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


# ---- with sinks ----

library.define(
    f"attention_sinks(Tensor q, Tensor k, Tensor v, Tensor sinks, {_OPTIONS}, bool lse=False) -> "
    "(Tensor, Tensor)",
    tags=tags,
)
library.define(
    "attention_sinks_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor sinks, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=tags,
)


def _facts(given: tuple) -> tuple[Pattern | None, Spec, tuple]:
    """Pattern, Spec and what follows _OPTIONS, of an operator's arguments after its tensors."""
    mask, shape, *facts, softcap = (*given, *_DEFAULTS[len(given) :])[: len(_DEFAULTS)]
    return _known(mask, shape), Spec(*facts, None, softcap), given[len(_DEFAULTS) :]


def _sinks_impl(q, k, v, sinks, *given, lse=False):
    pattern, spec, rest = _facts(given)
    with torch.no_grad():
        out, sums = forward_with_sinks(q, k, v, sinks, pattern, spec, rest[0] if rest else lse)
    return out, q.new_empty((0,), dtype=torch.float32) if sums is None else sums


def _sinks_backward_impl(grad, q, k, v, out, lse, sinks, *given):
    with torch.no_grad():
        return backward_with_sinks(q, k, v, sinks, out, lse, grad, *_facts(given)[:2])


for _device in ("CPU", "CUDA"):
    library.impl("attention_sinks", _sinks_impl, _device)
    library.impl("attention_sinks_backward", _sinks_backward_impl, _device)


@torch.library.register_fake("sparse_autotune::attention_sinks", lib=library)
def _sinks_fake(q, k, v, sinks, *given, lse=False):
    check(sinks.dtype == torch.float32, lambda: f"sinks has dtype {sinks.dtype}; expected torch.float32")
    _attention.check_sinks(sinks.shape, q.shape)
    return (
        _attention_fake(q, k, v, *given, lse=lse)
        if len(given) <= len(_DEFAULTS)
        else _attention_fake(q, k, v, *given)
    )


@torch.library.register_fake("sparse_autotune::attention_sinks_backward", lib=library)
def _sinks_backward_fake(grad, q, k, v, out, lse, sinks, *given):
    return _like(q), _like(k), _like(v), torch.empty_like(sinks)


def _sinks_setup(ctx, inputs, output):
    q, k, v, sinks, mask, *facts, lse = inputs
    out, sums = output
    ctx.mark_non_differentiable(sums)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, sinks, out, sums)
    ctx.index, ctx.facts, ctx.lse = Unchanged(mask), (list(facts[0]), *facts[1:]), lse


def _sinks_grads(ctx, grad, _):
    if grad is None:
        return (None,) * 13
    q, k, v, sinks, out, sums = ctx.saved_tensors
    words = *ctx.index.get(), *ctx.facts
    if not ctx.lse:
        out, sums = torch.ops.sparse_autotune.attention_sinks(q, k, v, sinks, *words, True)
    grads = torch.ops.sparse_autotune.attention_sinks_backward(grad, q, k, v, out, sums, sinks, *words)
    return *grads, *(None,) * 9


torch.library.register_autograd(
    "sparse_autotune::attention_sinks", _sinks_grads, setup_context=_sinks_setup, lib=library
)
torch.library.register_autograd(
    "sparse_autotune::attention_sinks_backward", _no_grads, setup_context=_no_setup, lib=library
)


def _sinks_vmap(name: str, count: int) -> Any:
    """Each item is computed alone. `count`: tensors before the options."""

    def rule(info, in_dims, *inputs):
        def item(x: Any, dim: Any, i: int) -> Any:
            return x if dim is None else x.select(dim, i)

        operator = getattr(torch.ops.sparse_autotune, name)
        found = [
            operator(*(item(x, d, i) for x, d in zip(inputs[: count + 1], in_dims)), *inputs[count + 1 :])
            for i in range(info.batch_size)
        ]
        return tuple(torch.stack(x) for x in zip(*found)), (0,) * len(found[0])

    return rule


torch.library.register_vmap(
    "sparse_autotune::attention_sinks", _sinks_vmap("attention_sinks", 4), lib=library
)
torch.library.register_vmap(
    "sparse_autotune::attention_sinks_backward", _sinks_vmap("attention_sinks_backward", 7), lib=library
)


# ---- autocast ----


def _register_autocast(device: str, key: str) -> None:
    uncast = private.without_autocast(device)

    def autocast(q, k, v, *rest, **words):
        with uncast():
            return torch.ops.sparse_autotune.attention(*cast(device, q, k, v), *rest, **words)

    def autocast_sinks(q, k, v, sinks, *rest, **words):
        with uncast():
            return torch.ops.sparse_autotune.attention_sinks(*cast(device, q, k, v), sinks, *rest, **words)

    library.impl("attention", autocast, key)
    library.impl("attention_sinks", autocast_sinks, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
