"""`attn_implementation="sparse_autotune"` of Hugging Face transformers.

Two functions are registered under that name. The one of AttentionMaskInterface makes the mask that a model
gives to all its layers: without it models get no mask at all, and lose causality and padding without a word.
The one of AttentionInterface computes a layer's attention, here where the package can, else by "sdpa" or
"eager".
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from .. import _ops
from .._mask import AttentionMask
from .._torch import drop_in, private

NAME = "sparse_autotune"
_SETTING = "sparse_autotune_prefill_mask"  # an attribute of modules
_warned: set[str] = set()


@private.outside_graphs
def _warn_once(by: str, why: str) -> None:
    text = f"attention of a model is computed by {by}: {why}"
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


# ---- which models it is for ----

_calls_interface: dict[type, bool] = {}  # by configuration


def _classes(base: type) -> list[type]:
    return [base, *(found for kind in base.__subclasses__() for found in _classes(kind))]


@private.outside_graphs
def _check_model(config: type) -> None:
    """Raises for a model that computes attention by itself: it would take a mask of booleans, or none, for
    something else."""
    if config not in _calls_interface:
        models = [kind for kind in _classes(PreTrainedModel) if getattr(kind, "config_class", None) is config]
        can_set = [getattr(kind, "_can_set_attn_implementation", lambda: True)() for kind in models]
        _calls_interface[config] = not can_set or any(can_set)
    if not _calls_interface[config]:
        raise NotImplementedError(
            f"models of {config.__name__} do not call transformers' AttentionInterface: use "
            'attn_implementation="eager"'
        )


# ---- what is seen ----

# These rely on "sdpa" by name where they leave out queries beside a mask that is None.
_ALWAYS_MASKED = ("gemma4",)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **words: Any,
) -> Tensor | None:
    """The mask of "sdpa": booleans (batch, 1, queries, keys), or None where `is_causal` says it all."""
    if config is not None:
        _check_model(type(config))
        if getattr(config, "model_type", "").startswith(_ALWAYS_MASKED):
            allow_is_causal_skip = False
    if _ops._compiling() and attention_mask is None and (local_size is None or kv_length < local_size):
        # There sdpa_mask always makes a mask, whose values nobody can look at.
        if allow_is_bidirectional_skip or (allow_is_causal_skip and kv_length == q_length):
            return None
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        **words,
    )


def set_prefill_mask(
    model: torch.nn.Module,
    mask: AttentionMask | Callable[[int, int], AttentionMask | None] | None,
) -> None:
    """Makes a model's attention keep no more than the blocks of a mask, wherever it has more than one query:
    in prefill and in training, beside what the model itself leaves out. Decoding, one query at a time, sees
    all keys.

    ``mask`` is an AttentionMask, which such a call must have the lengths of, or a function of queries and
    keys that gives one, or None for no blocks; it is asked once for each pair of lengths. None in its place
    takes the setting back. It works where the model's ``attn_implementation`` is "sparse_autotune".
    """
    if mask is not None and not isinstance(mask, AttentionMask):
        if not callable(mask):
            raise TypeError(f"mask is a {type(mask).__name__}; expected an AttentionMask, a function or None")
        mask = _Asked(mask)
    for module in model.modules():
        if mask is not None:
            setattr(module, _SETTING, mask)
        elif hasattr(module, _SETTING):
            delattr(module, _SETTING)


class _Asked:
    """What a function of lengths gave."""

    def __init__(self, make: Callable[[int, int], AttentionMask | None]) -> None:
        self.make, self.made = make, dict[tuple[int, int], AttentionMask | None]()

    def __call__(self, queries: int, keys: int) -> AttentionMask | None:
        lengths = queries, keys
        if lengths not in self.made:
            found = self.make(queries, keys)
            if found is not None and not isinstance(found, AttentionMask):
                raise TypeError(
                    f"the function of set_prefill_mask gave a {type(found).__name__}; expected an "
                    "AttentionMask or None"
                )
            self.made[lengths] = found
        return self.made[lengths]


def _blocks_for(module: torch.nn.Module, queries: int, keys: int) -> AttentionMask | None:
    setting = getattr(module, _SETTING, None)
    if setting is None or queries == 1:
        return None
    found = setting if isinstance(setting, AttentionMask) else setting(queries, keys)
    if found is not None and found.shape != (queries, keys):
        raise ValueError(
            f"the mask of set_prefill_mask is {found.shape[0]}x{found.shape[1]}; expected {queries}x{keys}, "
            "queries by keys. A function of both may be given instead"
        )
    return found


def _and_blocks(mask: Tensor | None, blocks: AttentionMask, causal: bool, device: torch.device) -> Tensor:
    """Both as booleans, where blocks alone do not do."""
    kept = torch.from_numpy(blocks.to_dense()).to(device)
    if causal:
        kept = kept.tril()  # counted from the first of both, as "sdpa" does
    kept = kept.reshape((1,) * (4 - kept.dim()) + tuple(kept.shape))
    if mask is None:
        return kept
    if mask.dtype is torch.bool:
        return kept & mask
    return mask.masked_fill(~kept, torch.finfo(mask.dtype).min)


# ---- a layer ----

# What "sdpa" and "eager" would ignore here, for a model builds other masks for those.
_REFUSED = {
    "cache": "continuous batching with a paged cache",
    "indices": "attention to keys that an indexer chose",
    "block_indices": "attention to blocks that an indexer chose",
}


def _eager_of(module: torch.nn.Module) -> Callable | None:
    """The eager attention that stands in the file of the module's model."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    return None


def _options(words: dict[str, Any]) -> dict[str, Any]:
    """What models call soft cap and sinks, in attention's words; "sdpa" has neither."""
    softcap, sinks = words.get("softcap"), words.get("s_aux")
    if sinks is None:
        sinks = words.get("sinks")
    found = {"softcap": softcap, "sinks": sinks}
    return {name: x for name, x in found.items() if x is not None}


def _asks_for(dropout: float, words: dict[str, Any]) -> tuple[str | None, str]:
    """Who has to compute what a layer asks for, or None, and why."""
    if words.get("output_attentions"):
        return "eager", "weights are wanted (output_attentions)"
    if _options(words) and dropout > 0:
        return "eager", "the model drops weights in training (attention dropout)"
    if words.get("position_bias") is not None:
        return "sdpa", "the model adds a bias to its scores (position_bias)"
    if dropout > 0:
        return "sdpa", "the model drops weights in training (attention dropout)"
    return None, ""


def _eager(
    module: torch.nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    words: dict[str, Any],
) -> Any:
    eager = _eager_of(module)
    if eager is None:
        raise NotImplementedError(
            f"the file of {type(module).__name__} has no eager_attention_forward: use "
            'attn_implementation="eager"'
        )
    if mask is None and causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros((), dtype=q.dtype, device=q.device).where(mask, torch.finfo(q.dtype).min)
    return eager(module, q, k, v, mask, **words)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **words: Any,
) -> tuple[Tensor, Tensor | None]:
    """query is (batch, heads, queries, size), the result (batch, queries, heads, size)."""
    for word, what in _REFUSED.items():
        if words.get(word) is not None:
            raise NotImplementedError(f'{what} ({word}) is not offered: use attn_implementation="sdpa"')
    queries = query.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # "sdpa" counts causality from the first key: an empty static cache has room for later ones
    causal = bool(queries > 1 and attention_mask is None and causal)
    if causal and key.shape[2] > queries and words.get("position_bias") is None:
        key, value = key[:, :, :queries], value[:, :, :queries]
    blocks = _blocks_for(module, queries, key.shape[2])
    by, why = _asks_for(dropout, words)
    options = _options(words)
    if by is None:
        out, why = drop_in.attend(
            query,
            key,
            value,
            attention_mask,
            causal,
            scaling,
            True,
            padding_is_free=True,
            blocks=blocks,
            **options,
        )
        if out is not None:
            drop_in.say("sparse_autotune", why)
            return out.transpose(1, 2).contiguous(), None
        by = "eager" if options else "sdpa"
    drop_in.say(by, why)
    _warn_once(by, why)
    if blocks is not None:
        attention_mask, causal = _and_blocks(attention_mask, blocks, causal, query.device), False
    if by == "eager":
        words = {"dropout": dropout, "scaling": scaling, **words}
        return _eager(module, query, key, value, attention_mask, causal, words)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, causal, **words
    )


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, make_mask)
