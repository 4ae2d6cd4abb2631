"""Hugging Face transformers: importing this registers `attn_implementation="sparse_autotune"`.

transformers is imported here and nowhere else in the package.
"""

from .attention import set_prefill_mask

__all__ = ["set_prefill_mask"]
