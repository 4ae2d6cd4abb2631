"""Hugging Face's transformers. Importing this package registers with transformers what is in it:

- `attention`: ``attn_implementation="sparse_autotune"``
- `experts`: ``experts_implementation="sparse_autotune"``

transformers is imported here and nowhere else in the package.
"""

from . import attention, experts
from .attention import set_prefill_mask

__all__ = ["attention", "experts", "set_prefill_mask"]
