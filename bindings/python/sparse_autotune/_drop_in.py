"""torch's `scaled_dot_product_attention`, by its own signature."""

from __future__ import annotations

from typing import Any

_torch_call: Any = None  # set by _torch.drop_in once torch is there


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention`, by this package where it can, else by torch.

    Arguments, shapes and results are torch's, ``is_causal`` too, which counts from the first query and the
    first key. Beside torch's masks ``attn_mask`` may be whatever `attention` takes as a mask.

    A mask of booleans, or of 0 and -inf, is analysed once, and what was found is kept with its tensor. Where
    it is causal, a window, padding, packed sequences or whole blocks, this package computes. torch does where
    it is anything else, and where this package cannot: head sizes above 576, transforms of torch.func, and
    masks that are tensors inside torch.compile.

    - ``dropout_p`` above 0 raises NotImplementedError.
    - A query that keeps no key gets zeros.
    - Each call writes a line to the logger "sparse_autotune" at level DEBUG: who computes it, and why.
    """
    if _torch_call is None:
        from . import _torch as _  # noqa: F401  sets it
    return _torch_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
