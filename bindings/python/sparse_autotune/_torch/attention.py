"""Attention of torch tensors: by a runner, by the full path with or without gradients, or by operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _attention, _mask
from .._attention import Spec
from .._mask import AttentionMask, flag, whole
from .._pattern import Pattern
from .._quick import _fast, runner
from . import masks, modes, own_attention
from .masks import index_of
from .modes import plain
from .operators import autocasts, cast
from .private import forward_ad
from .quick import install
from .refusals import ReverseOnly, refuse_tangents

ONCE = "q, k and v: attention has first gradients only"

# ---- without gradients ----


def run_quick(q: Any, k: Any, v: Any, mask: AttentionMask | None, spec: Spec) -> Tensor | None:
    """Attention of plain tensors by a runner that knows them. None where there is none."""
    if not (isinstance(k, Tensor) and isinstance(v, Tensor) and q.dim() >= 2 and k.dim() >= 2):
        return None
    m, n = q.shape[-2], k.shape[-2]
    if (mask is not None and mask._shape != (m, n)) or forward_ad._current_level >= 0:
        return None
    pattern = mask._pattern if mask is not None else _attention._dense.get((m, n))
    quick = None if pattern is None or _fast is None else pattern.caches.get(("attention", *spec.key))
    return None if quick is None else quick.run(q, k, v)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Pattern | None,
    spec: Spec,
    lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention of plain tensors by the full path, which gives the runner its plan."""
    if forward_ad._current_level >= 0:
        refuse_tangents(q, k, v)
    if isinstance(mask, AttentionMask) and q.is_cuda:
        index_of(mask, q.device)  # for torch.compile, later
    out, sums, made = _attention.forward(q, k, v, mask, spec, lse, keep=not lse and _fast is not None)
    if made is not None:
        pattern = _attention.pattern_for(mask, q.shape[-2], k.shape[-2])
        install(runner(pattern, ("attention", *spec.key), spec.scale or 1.0), (q, k, v), out, made)
    return out, sums


# ---- with gradients ----


class _Attention(ReverseOnly):
    @staticmethod
    def forward(ctx, q, k, v, mask, spec):
        out, lse = forward(q, k, v, mask, spec, True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.facts = (mask, spec)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, grad, _):
        (mask, spec), tensors = ctx.facts, (grad, *ctx.saved_tensors)
        if plain(*tensors):
            return *_Gradients.of_plain(*tensors, mask, spec), None, None
        words = operator_words(grad.device, mask, *_words_of(spec))
        return *torch.ops.sparse_autotune.attention_backward(*tensors, *words), None, None


class _Gradients(ReverseOnly):
    @staticmethod
    def forward(ctx, grad, q, k, v, out, lse, mask, spec):
        return _attention.backward(q, k, v, out, lse, grad, mask, spec)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(ONCE)


# ---- what attention calls ----


def _call(q, k, v, mask, causal, window, scale, return_lse, deterministic, allow_tf32, spec=None):
    if spec is None:  # torch.compile traces this: no Python that it cannot follow
        causal, deterministic = flag(causal, "causal"), flag(deterministic, "deterministic")
        allow_tf32 = None if allow_tf32 is None else flag(allow_tf32, "allow_tf32")
        if window is not None and type(window) is not int:
            window = whole(window, "window")  # the operator checks how large it is
        return _through_operator(q, k, v, mask, return_lse, causal, window, scale, deterministic, allow_tf32)
    for x, name in ((k, "k"), (v, "v")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, as q is")
    if not plain(q, k, v):
        return _through_operator(q, k, v, mask, return_lse, *_words_of(spec))
    if autocasts(q):
        q, k, v = cast(q.device.type, q, k, v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.of_plain(q, k, v, mask, spec)
    else:
        out, lse = forward(q, k, v, mask, spec, return_lse)
    return (out, lse) if return_lse else out


def _words_of(spec: Spec) -> tuple:
    """A spec as arguments of the operators."""
    return spec.causal, spec.window or None, spec.scale or None, not spec.flags, spec.tf32


def operator_words(device, mask, causal, window, scale, deterministic, allow_tf32):
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
    return index, shape, causal, window, scale, deterministic, allow_tf32


def _through_operator(q, k, v, mask, return_lse, *facts):
    if mask is not None:
        _attention.check_shapes(q.shape, k.shape, v.shape, mask._shape, mask._heads)
    needs = return_lse or (
        torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    )
    out, lse = torch.ops.sparse_autotune.attention(q, k, v, *operator_words(q.device, mask, *facts), needs)
    return (out, lse) if return_lse else out


_attention._torch_attention = _call
_attention._torch_quick = run_quick
_attention._torch_forward = forward
own_attention.register_torch()
for _early in list(_mask.early):
    masks.adopt(_early)
