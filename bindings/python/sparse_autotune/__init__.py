"""Block-sparse matrix products that are right, and as fast as this machine allows.

>>> import numpy as np, sparse_autotune as sa
>>> A = sa.BsrMatrix.from_dense(np.kron(np.eye(4), np.ones((16, 16))), block=16)
>>> B = np.ones((64, 8))
>>> (A @ B)[0, 0]
np.float64(16.0)
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from . import cache
from ._abi import (
    ArgumentError,
    BusyError,
    CancelledError,
    DeviceError,
    Error,
    FileError,
    OutOfMemoryError,
    UnsupportedError,
)
from ._abi import version as __version__
from ._attention import attention
from ._attention_variants import AttentionCall
from ._context import device_info, get_effort, set_effort
from ._drop_in import scaled_dot_product_attention
from ._grouped import grouped_matmul, grouped_weights
from ._mask import AttentionMask
from ._matrix import BsrMatrix
from ._ops import bsr_gemm, matmul, sampled_matmul
from ._race import Race, Record, benchmark, tune
from ._variants import VariantCall, register_variant

__all__ = [
    "ArgumentError",
    "AttentionCall",
    "AttentionMask",
    "BsrMatrix",
    "BusyError",
    "CancelledError",
    "DeviceError",
    "Error",
    "FileError",
    "OutOfMemoryError",
    "Race",
    "Record",
    "UnsupportedError",
    "VariantCall",
    "__version__",
    "attention",
    "benchmark",
    "bsr_gemm",
    "cache",
    "device_info",
    "get_effort",
    "grouped_matmul",
    "grouped_weights",
    "matmul",
    "register_variant",
    "sampled_matmul",
    "scaled_dot_product_attention",
    "set_effort",
    "tune",
]

if importlib.util.find_spec("torch") is not None:
    __all__ += ["MoE", "SparseLinear", "SparsifyReport", "block_scores", "choose_blocks", "freeze", "refresh"]
    __all__ += ["sparsify", "unfreeze"]

if sys.modules.get("torch") is not None:
    from . import _torch  # noqa: F401  the operators


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # these need torch, which is imported only when asked for
    if name in ("nn", "distributed"):
        return importlib.import_module(f".{name}", __name__)
    if name in ("MoE", "SparseLinear", "SparsifyReport", "freeze", "refresh", "sparsify", "unfreeze"):
        return getattr(importlib.import_module(".nn", __name__), name)
    if name in ("block_scores", "choose_blocks"):
        return getattr(importlib.import_module("._torch.choose", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
