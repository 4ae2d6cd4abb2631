"""Hugging Face's transformers. Importing this package registers with transformers 5 what is in it:

- `experts`: ``experts_implementation="sparse_autotune"``
"""

from . import experts

__all__ = ["experts"]
