"""scaled_dot_product_attention in torch's place: by attention where that can do it, else by torch."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from .. import _drop_in, _ops
from .._attention import MOST_SIZE, attention
from .._mask import AttentionMask
from . import private
from .explained import Words, words_of
from .modes import plain
from .operators import autocasts
from .private import forward_ad

# torch's own, also where a program has put ours in its place.
torch_own = torch.nn.functional.scaled_dot_product_attention
log = logging.getLogger("sparse_autotune")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@private.outside_graphs
def _say_when_compiled(by: str, why: str) -> None:
    log.debug("scaled_dot_product_attention, compiled: by %s: %s", by, why)


def say(by: str, why: str) -> None:
    """The line in the log. Of what is compiled there is one a graph."""
    if _ops._compiling():
        _say_when_compiled(by, why)
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("scaled_dot_product_attention: by %s: %s", by, why)


def _unfit(q: Any, k: Any, v: Any, scale: Any, enable_gqa: bool) -> str | None:
    """Why attention cannot take these operands, whatever the mask."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return "an operand is no tensor"
    if q.is_nested or k.is_nested or v.is_nested:
        return "an operand is a nested tensor"
    if q.device.type not in ("cpu", "cuda") or k.device != q.device or v.device != q.device:
        return "operands are on another kind of device, or on several"
    if q.dtype not in _DTYPES or k.dtype not in _DTYPES or v.dtype not in _DTYPES:
        return "operands have other dtypes"
    if k.dtype != q.dtype or v.dtype != q.dtype:
        if not autocasts(q) or torch.float64 in (q.dtype, k.dtype, v.dtype):
            return "operands have several dtypes"
    if q.dim() < 2 or k.dim() != q.dim() or v.dim() != q.dim():
        return "operands have other numbers of dimensions"
    if k.shape[-1] != q.shape[-1]:
        return "heads of keys have another size than those of queries"
    if not 1 <= q.shape[-1] <= MOST_SIZE or not 1 <= v.shape[-1] <= MOST_SIZE:
        return f"a head size is not from 1 to {MOST_SIZE}"
    if k.shape[:-3] != q.shape[:-3] or v.shape[:-1] != k.shape[:-1]:
        return "operands are repeated over the batch"
    if q.dim() > 2 and k.shape[-3] != q.shape[-3]:
        if not enable_gqa or k.shape[-3] == 0 or q.shape[-3] % k.shape[-3] != 0:
            return "queries and keys differ in heads"
    if scale is not None and (not isinstance(scale, (int, float)) or scale != scale or abs(scale) > 1e38):
        return "scale is no finite number"
    return None


def _transformed() -> bool:
    """Whether a transform of torch.func or forward-mode AD, whose gradients attention has not, is around."""
    return not _ops._compiling() and (forward_ad._current_level >= 0 or private.interpreter() is not None)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    padding_is_free: bool = False,
    blocks: AttentionMask | None = None,
    **options: Any,
) -> tuple[Tensor | None, str]:
    """The result and how it came about; or None, and why attention cannot do it. `padding_is_free`: queries
    that stand at keys which nobody sees may get anything. `blocks`: what is kept at most, beside the mask.
    `options`: softcap and sinks of attention."""
    unfit = _unfit(q, k, v, scale, enable_gqa)
    if unfit is not None:
        return None, unfit
    if not _ops._compiling() and not {type(q), type(k), type(v)} <= {Tensor, torch.nn.Parameter}:
        return None, "an operand is of a class of its own"
    if _transformed():
        return None, "a transform of torch.func or forward-mode AD is around"
    if mask is None:
        if is_causal and q.shape[-2] != k.shape[-2]:  # counted from the first of both
            if q.shape[-2] > k.shape[-2]:
                return None, "is_causal beside more queries than keys"
            k, v = k[..., : q.shape[-2], :], v[..., : q.shape[-2], :]
        out = attention(q, k, v, blocks, is_causal, None, scale, **options)
        return out, "causal" if is_causal else "all keys"
    if is_causal:
        return None, "attn_mask and is_causal are both given"
    if not isinstance(mask, Tensor):
        return None, "the mask is no tensor"
    if mask.layout is not torch.strided:
        return None, "the mask is a sparse tensor"
    if _ops._compiling():
        return None, "torch.compile cannot look into a mask that is a tensor"
    if mask.device != q.device:
        return None, "the mask is on another device"
    if q.dim() > 4:
        return None, "a mask beside more than four dimensions"
    if not plain(q, k, v, mask):
        return None, "a mode or a trace is around, or a tensor is of a class of its own"
    batch, heads = (q.shape[-4] if q.dim() == 4 else 1), (q.shape[-3] if q.dim() > 2 else 1)
    if mask.dim() > q.dim() or 0 in q.shape or 0 in k.shape:
        return None, "the mask does not fit the scores, or there are none"
    words = words_of(mask, batch, heads, q.shape[-2], k.shape[-2], padding_is_free)
    if isinstance(words, str):
        return None, words
    if blocks is not None:
        if words.mask is not None or (words.first, words.last) != (0, k.shape[-2]):
            return None, "blocks beside a mask that is not causal or a window alone"
        words = words._replace(mask=blocks)
    return _by_words(q, k, v, words, scale, options), _told(words)


def _by_words(
    q: Tensor, k: Tensor, v: Tensor, words: Words, scale: float | None, options: dict[str, Any]
) -> Tensor:
    if not words.packed:
        if (words.first, words.last) != (0, k.shape[-2]):
            k, v = k[..., words.first : words.last, :], v[..., words.first : words.last, :]
        return attention(q, k, v, words.mask, words.causal, words.window, scale, **options)
    k, v = k[..., : words.last, :], v[..., : words.last, :]
    if q.dim() < 4:  # one item
        return attention(q, k, v, words.mask, scale=scale, **options)
    # (batch, heads, length, size) to (1, heads, batch * length, size): a view where heads are within rows
    one = (x.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None] for x in (q, k, v))
    out = attention(*one, words.mask, scale=scale, **options)
    return out[0].transpose(0, 1).unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


def _told(words: Words) -> str:
    if words.mask is not None:
        return repr(words.mask)
    said = [f"keys {words.first} to {words.last}"]
    if words.causal:
        said.append("causal")
    if words.window:
        said.append(f"window {words.window}")
    return ", ".join(said)


def _call(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    if dropout_p > 0:
        raise NotImplementedError(f"dropout_p is {dropout_p}; expected 0: there is no dropout")
    if attn_mask is not None and (not isinstance(attn_mask, Tensor) or attn_mask.layout is not torch.strided):
        say("sparse_autotune", "a mask of blocks")
        return attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    out, why = (None, "dropout_p is below 0") if dropout_p < 0 else (None, "is_causal is no bool")
    if dropout_p == 0 and isinstance(is_causal, bool):
        out, why = attend(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if out is None:
        say("torch", why)
        return torch_own(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    say("sparse_autotune", why)
    return out


_drop_in._torch_call = _call
