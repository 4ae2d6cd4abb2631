"""Models of Hugging Face transformers. Importing this package tells transformers of what is in it.

- `checkpoints`: `from_pretrained` makes a model sparse, `save_pretrained` keeps it sparse
"""

from . import checkpoints
from .checkpoints import SparseAutotuneConfig, mark

__all__ = ["SparseAutotuneConfig", "checkpoints", "mark"]
