"""Hugging Face's transformers. Importing this package registers with transformers what is in it:

- `attention`: ``attn_implementation="sparse_autotune"``
- `experts`: ``experts_implementation="sparse_autotune"``
- `checkpoints`: `from_pretrained` makes a model sparse, `save_pretrained` keeps it sparse

transformers is imported here and nowhere else in the package.
"""

from . import attention, checkpoints, experts
from .attention import set_prefill_mask
from .checkpoints import SparseAutotuneConfig, mark

__all__ = ["SparseAutotuneConfig", "attention", "checkpoints", "experts", "mark", "set_prefill_mask"]
