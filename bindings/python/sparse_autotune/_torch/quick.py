"""The fast path of torch tensors: what `_fast.Runner` needs of torch, and how it gets its plans.

`_quick.py` has the half that does not depend on torch. NumPy arrays use it, too.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from .. import _abi, _arrays, _context, _fixed, _products, _quick
from .._matrix import BsrMatrix
from .._pattern import Kept, alignment
from .._quick import _fast
from . import private
from .patterns import index_tensors

if _fast is not None:
    _fast.torch(
        Tensor,
        torch.nn.Parameter,
        Tensor.is_neg,
        torch.is_grad_enabled,
        private.any_autocast,
        private.mode_count,
        private.is_tracing,
        private.early_modes,
        private.before_dispatch,
        private.interpreter,
        torch.get_num_threads,
        private.current_stream,
        private.allows_tf32,
        (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64),
        private.dlpack_exchange,
    )


def adopt(matrix: BsrMatrix) -> None:
    """Makes a matrix with torch values ready: its runners, and its indices as tensors."""
    matrix._index = index_tensors(matrix._pattern, matrix._values.device)
    if not (matrix.is_dynamic and torch.compiler.is_dynamo_compiling()):  # there operators do all
        _quick.adopt(matrix)


def _maker(result: Tensor) -> tuple[Any, tuple]:
    """What makes tensors like this one, and with what arguments."""
    shape, strides, device = tuple(result.shape), result.stride(), result.device
    quick = private.quick_maker(device.type)
    if quick is not None and (device.type == "cpu" or device.index == torch.cuda.current_device()):
        return quick, (shape, strides, result.dtype)
    return functools.partial(torch.empty_strided, dtype=result.dtype, device=device), (shape, strides)


@functools.cache
def _watch_captures() -> None:
    """Gives runners the driver's function that tells whether a stream is being captured. For use once a GPU
    is in use."""
    question = _context.driver_function("cuStreamIsCapturing")
    if question is not None:
        _fast.driver(_abi.address(question))


def install(quick: Any, inputs: tuple, results: tuple, made: Kept | None) -> None:
    """As _quick.install, for tensors."""
    if made is None:
        return
    first = inputs[0]
    if first.is_cuda:
        _watch_captures()
    tf32 = int(bool(first.is_cuda and first.dtype == torch.float32 and _products.torch_allows_tf32()))
    aligned = [alignment(t.data_ptr(), str(t.device)) for t in (*inputs, *results)]
    for i, t in _quick.lists_among(inputs, results):
        aligned[i] = t.element_size()
    makers = tuple(map(_maker, results))
    plan, owner = (made.plan.handle, made) if made.function is None else (0, made.function)
    quick.add(inputs, tuple(aligned), makers, made.stream, made.threads, tf32, plan, owner)


def _count_of(values: Any) -> Any:
    """torch's count of writes to fixed values; None where nobody counts. The Python part of `Runner.fix`."""
    counted = isinstance(values, Tensor) and not values.is_inference()
    return private.version_of(values) if counted else None


def _stream_of(device: str, stream: int) -> Any:
    """torch's current stream, where it is this one and torch's own, which it never destroys; else None."""
    if device == "cpu" or not torch.cuda.is_initialized():
        return None
    current = torch.cuda.current_stream(device)
    own = stream == 0 or current.stream_id != stream  # that of another's stream is its address
    return current if own and current.cuda_stream == stream else None


def _is_done(stream: Any) -> bool:
    """Whether all that is queued on a stream is done. For a thread that no capture minds."""
    capturing, status = _context.driver_function("cuStreamIsCapturing"), ctypes.c_int()
    if capturing is None or capturing(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(status)):
        return False
    return status.value == 0 and stream.query()


_fixed.count_of, _fixed.stream_of, _fixed.is_done = _count_of, _stream_of, _is_done
_quick.torch_types, _quick.install_torch = (Tensor, torch.nn.Parameter), install
_arrays.torch_stream = private.current_stream
