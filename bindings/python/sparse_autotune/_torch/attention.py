"""Attention of torch tensors: by runners or the full path, with or without gradients, or by operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _abi, _attention, _mask
from .._attention import Spec
from .._mask import AttentionMask, flag, whole
from .._pattern import Pattern
from .._quick import AttentionRunners, _fast, runner
from . import masks, modes, own_attention
from .masks import index_of
from .modes import plain
from .operators import autocasts, cast
from .private import any_autocast, forward_ad
from .quick import install
from .refusals import ReverseOnly, refuse_tangents
from .sharding import alike

ONCE = "q, k, v and sinks: attention has first gradients only"

# ---- one pass: by a runner, or by the full path, which gives the runner its plan ----


def _runners(q: Tensor, k: Tensor, mask: AttentionMask | Pattern | None, spec: Spec) -> Any:
    """The AttentionRunners of such a call, or None where there was none yet."""
    try:
        lengths = q.shape[-2], k.shape[-2]
    except IndexError:  # which the full path reports
        return None
    if mask is None:
        pattern = _attention.dense_patterns.get(lengths)
    elif isinstance(mask, AttentionMask):
        pattern = mask._pattern if mask._shape == lengths else None
    else:
        pattern = mask
    return None if pattern is None else pattern.caches.get(spec.key)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Pattern | None,
    spec: Spec,
    lse: bool,
    known: AttentionRunners | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of plain tensors, and LSE or None. `known`: the runners, where the caller has looked."""
    if forward_ad._current_level >= 0:
        refuse_tangents(q, k, v)
    known = known or _runners(q, k, mask, spec)
    if known is not None:
        found = (known.with_lse if lse else known.forward).run_inside(q, k, v)
        if found is not None:
            return found if lse else (found, None)
    _abi.raise_interrupt()
    if isinstance(mask, AttentionMask) and q.is_cuda:
        index_of(mask, q.device)  # for torch.compile, later
    out, sums, made = _attention.forward(q, k, v, mask, spec, lse, keep=_fast is not None)
    if made is not None:
        pattern = _attention.pattern_for(mask, q.shape[-2], k.shape[-2])
        known = runner(pattern, spec.key, spec.scale or 1.0, AttentionRunners)
        quick, results = (known.with_lse, (out, sums)) if lse else (known.forward, (out,))
        install(quick, (q, k, v), results, made)
    return out, sums


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    mask: AttentionMask | Pattern | None,
    spec: Spec,
    known: AttentionRunners | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, all plain tensors."""
    known = known or _runners(q, k, mask, spec)
    if known is not None:
        found = known.backward.run_inside(q, k, v, out, lse, grad)
        if found is None and grad.stride()[-1] != 1:  # sum() gives one element for all
            grad = grad.contiguous()
            found = known.backward.run_inside(q, k, v, out, lse, grad)
        if found is not None:
            return found
    _abi.raise_interrupt()
    grads, made = _attention.backward(q, k, v, out, lse, grad, mask, spec, keep=known is not None)
    if made is not None:
        install(known.backward, (q, k, v, out, lse, grad), grads, made)
    return grads


# ---- with gradients ----


class _Attention(ReverseOnly):
    """(q, k, v) to the result, or to result and LSE. `call`: mask, spec and known, as above."""

    @staticmethod
    def forward(ctx, q, k, v, call, return_lse):
        mask, spec, known = call
        out, lse = forward(q, k, v, mask, spec, True, known)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        ctx.call = call
        if not return_lse:
            return out
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, grad, _=None):
        if grad is None:
            return None, None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        mask, spec, known = ctx.call
        again = torch.is_grad_enabled()  # the gradients' own graph is wanted
        grads = None
        if known is not None and not again:
            grads = known.backward.run_inside(q, k, v, out, lse, grad)
        if grads is None and not plain(q, k, v, out, lse, grad):
            words = operator_words(grad.device, mask, *_words_of(spec))
            grads = torch.ops.sparse_autotune.attention_backward(grad, q, k, v, out, lse, *words)
        if grads is None:
            compute = _Gradients.of_plain if again else backward
            grads = compute(q, k, v, out, lse, grad, *ctx.call)
        return *grads, None, None


class _Gradients(ReverseOnly):
    @staticmethod
    def forward(ctx, *arguments):
        return backward(*arguments)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(ONCE)


class _SinkAttention(ReverseOnly):
    """The same with sinks, which runners do not take. `call`: mask and spec."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, call, return_lse):
        out, lse = forward_with_sinks(q, k, v, sinks, *call, True)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.set_materialize_grads(False)
        ctx.call = call
        if not return_lse:
            return out
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, grad, _=None):
        if grad is None:
            return (None,) * 6
        q, k, v, sinks, out, lse = ctx.saved_tensors
        mask, spec = ctx.call
        if plain(q, k, v, sinks, out, lse, grad):
            compute = _SinkGradients.of_plain if torch.is_grad_enabled() else backward_with_sinks
            grads = compute(q, k, v, sinks, out, lse, grad, mask, spec)
        else:
            words = operator_words(grad.device, mask, *_words_of(spec))
            grads = torch.ops.sparse_autotune.attention_sinks_backward(grad, q, k, v, out, lse, sinks, *words)
        return *grads, None, None


class _SinkGradients(ReverseOnly):
    @staticmethod
    def forward(ctx, *arguments):
        return backward_with_sinks(*arguments)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(ONCE)


def forward_with_sinks(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Any, spec: Spec, lse: bool
) -> tuple[Tensor, Tensor | None]:
    if forward_ad._current_level >= 0:
        refuse_tangents(q, k, v, sinks)
    _abi.raise_interrupt()
    if isinstance(mask, AttentionMask) and q.is_cuda:
        index_of(mask, q.device)  # for torch.compile, later
    return _attention.forward(q, k, v, mask, spec, lse, sinks_array=sinks)[:2]


def backward_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    mask: Any,
    spec: Spec,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _abi.raise_interrupt()
    return _attention.backward(q, k, v, out, lse, grad, mask, spec, sinks_array=sinks)[0]


# ---- what attention calls ----


def run_quick(
    q: Any,
    k: Any,
    v: Any,
    mask: AttentionMask | None,
    spec: Spec,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """Attention of plain tensors that a runner knows. None where there is none, or autocast, a mode or a
    transform is active."""
    if _fast is None or not _fast.plain(q, k, v) or any_autocast() or forward_ad._current_level >= 0:
        return None
    known = _runners(q, k, mask, spec)
    if known is None:
        return None
    if _wants_gradient(q, k, v):
        return _Attention.of_plain(q, k, v, (mask, spec, known), return_lse)
    return (known.with_lse if return_lse else known.forward).run_inside(q, k, v)


def _wants_gradient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _call(
    q,
    k,
    v,
    mask,
    causal,
    window,
    scale,
    return_lse,
    deterministic,
    allow_tf32,
    softcap=None,
    sinks=None,
    spec=None,
):
    if sinks is not None:
        if not isinstance(sinks, Tensor):
            raise TypeError(f"sinks is a {type(sinks).__name__}; expected a torch tensor, as q is")
        _attention.check_sinks(sinks.shape, q.shape)
        if sinks.dtype is not torch.float32:
            sinks = sinks.float()
    if spec is None:  # torch.compile traces this: no Python that it cannot follow
        causal, deterministic = flag(causal, "causal"), flag(deterministic, "deterministic")
        allow_tf32 = None if allow_tf32 is None else flag(allow_tf32, "allow_tf32")
        if window is not None and type(window) is not int:
            window = whole(window, "window")  # the operator checks how large it is
        facts = causal, window, scale, deterministic, allow_tf32, softcap
        return _through_operator(q, k, v, mask, sinks, return_lse, *facts)
    for x, name in ((k, "k"), (v, "v")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, as q is")
    if not plain(q, k, v) or (sinks is not None and not plain(sinks)):
        return _through_operator(q, k, v, mask, sinks, return_lse, *_words_of(spec))
    if autocasts(q):
        q, k, v = cast(q.device.type, q, k, v)
    if sinks is not None:
        if _wants_gradient(q, k, v) or (torch.is_grad_enabled() and sinks.requires_grad):
            return _SinkAttention.of_plain(q, k, v, sinks, (mask, spec), return_lse)
        out, lse = forward_with_sinks(q, k, v, sinks, mask, spec, return_lse)
        return (out, lse) if return_lse else out
    if _wants_gradient(q, k, v):
        return _Attention.of_plain(q, k, v, (mask, spec, None), return_lse)
    out, lse = forward(q, k, v, mask, spec, return_lse)
    return (out, lse) if return_lse else out


def _words_of(spec: Spec) -> tuple:
    """A spec as arguments of the operators."""
    return (
        spec.causal,
        spec.window or None,
        spec.scale or None,
        not spec.flags,
        spec.tf32,
        spec.softcap or None,
    )


def operator_words(device, mask, causal, window, scale, deterministic, allow_tf32, softcap=None):
    """What the operators take beside tensors."""
    index, shape = None, ()
    if mask is not None:
        at = masks.place_of(device)
        # The CPU's serves, too, but for CUDA graphs.
        index = mask._tensors[at] if at in mask._tensors else mask._tensors[-1]
        if modes.makes_fakes(index):
            index = masks.copy_index(mask._pattern, device)
        shape, causal = mask._index_shape, causal or mask._causal
        if mask._window:
            window = mask._window if window is None else min(window, mask._window)
    return index, shape, causal, window, scale, deterministic, allow_tf32, softcap


def _through_operator(q, k, v, mask, sinks, return_lse, *facts):
    if mask is not None:
        _attention.check_shapes(q.shape, k.shape, v.shape, mask._shape, mask._heads)
    needs = return_lse or _wants_gradient(q, k, v)
    index, *words = operator_words(q.device, mask, *facts)
    (index,) = alike(q, index)
    if sinks is not None:
        needs = needs or (torch.is_grad_enabled() and sinks.requires_grad)
        out, lse = torch.ops.sparse_autotune.attention_sinks(q, k, v, sinks, index, *words, needs)
    else:
        out, lse = torch.ops.sparse_autotune.attention(q, k, v, index, *words, needs)
    return (out, lse) if return_lse else out


_attention._torch_attention = _call
_attention._torch_quick = run_quick
_attention._torch_forward = forward
own_attention.register_torch()
for _early in list(_mask.early):
    masks.adopt(_early)
