"""Dense arrays of any maker, seen as pointer, shape, strides, dtype and device, without a copy.

torch and CuPy are only ever looked up among the modules that the program has imported already: an array of
theirs cannot exist otherwise, and importing this package stays cheap.
"""

from __future__ import annotations

import ctypes
import reprlib
import sys
from typing import Any

import numpy as np

from . import _abi

EXPECTED = "expected a torch, NumPy, CuPy or DLPack array"


def torch_module() -> Any:
    return sys.modules.get("torch")


def cupy_module() -> Any:
    return sys.modules.get("cupy")


def no_mask(x: Any, name: str) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; {EXPECTED}")


def host(x: Any, name: str) -> np.ndarray:
    """An array or list of whatever maker as NumPy's, in host memory."""
    no_mask(x, name)
    torch = torch_module()
    tensor = torch is not None and isinstance(x, torch.Tensor)
    if tensor and x.is_meta:
        raise ValueError(f"{name} is on meta; expected numbers, on cpu or cuda")
    if tensor:
        x = x.detach().cpu()
    elif hasattr(x, "__cuda_array_interface__") and hasattr(x, "get"):
        x = x.get()
    try:
        return x.numpy() if tensor else np.asarray(x)
    # ragged lists, layouts and dtypes that NumPy has not, fake tensors
    except (RuntimeError, TypeError, ValueError) as error:
        what = f"a {type(x).__name__} of {x.dtype}, {x.layout}" if tensor else reprlib.repr(x)
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name} is {what}; expected what NumPy can make an array of: {error}") from error


class Operand:
    """One dense array: where it is and its layout. `array` keeps the memory alive."""

    __slots__ = ("array", "device", "dtype", "kind", "maker", "pointer", "shape", "strides")

    def __init__(
        self,
        kind: str,
        array: Any,
        pointer: int,
        shape: tuple,
        strides: tuple,
        dtype: int,
        device: str,
        maker: Any,
    ):
        self.kind, self.array, self.pointer, self.shape, self.strides = kind, array, pointer, shape, strides
        self.dtype, self.device, self.maker = dtype, device, maker


_codes: dict[Any, int] = {}  # dtypes that were seen


def dtype_code(dtype: Any, name: str) -> int:
    """The library's number for a NumPy, torch or CuPy dtype, or for a name such as "float16"."""
    try:
        return _codes[dtype]
    except (KeyError, TypeError):
        pass
    text = dtype if isinstance(dtype, str) else None
    if text is None:
        torch = torch_module()
        if torch is not None and isinstance(dtype, torch.dtype):
            text = str(dtype).removeprefix("torch.")
        else:
            try:
                found = np.dtype(dtype)
            except TypeError:
                raise TypeError(
                    f"{name} has dtype {dtype!r}; expected float32, float64, float16 or bfloat16"
                ) from None
            text = found.name if found.isnative else f"{found.name} in foreign byte order"
    code = _abi.DTYPES.get(text)
    if code is None:
        raise TypeError(f"{name} has dtype {text}; expected float32, float64, float16 or bfloat16")
    _codes[dtype] = code
    return code


# ---- one function a maker ----


def refuse_nested(torch: Any, x: Any, name: str) -> None:
    if torch is not None and isinstance(x, torch.Tensor) and x.is_nested:
        raise TypeError(f"{name} is a nested tensor; expected a dense one")


def _from_torch(x: Any, name: str) -> Operand:
    torch = torch_module()
    refuse_nested(torch, x, name)
    if x.layout is not torch.strided:
        raise TypeError(f"{name} is a tensor of layout {x.layout}; expected a dense one")
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {x.device}; expected cpu or cuda")
    dtype = dtype_code(x.dtype, name)
    if x.is_neg():  # a view whose numbers torch negates when it reads them
        x = x.resolve_neg()
    try:
        pointer = x.data_ptr()
    except RuntimeError as error:
        raise TypeError(f"{name} is a tensor without memory of its own ({type(x).__name__})") from error
    if not pointer and x._is_zerotensor():  # autograd's zeros, which have no memory
        x = torch.zeros_like(x)
        pointer = x.data_ptr()
    return Operand("torch", x, pointer, tuple(x.shape), x.stride(), dtype, str(x.device), None)


def _in_elements(x: Any) -> tuple | None:
    """Strides in elements; None where there are none (negative, or between elements). Those of one element,
    or of none, mean nothing."""
    size, steps = x.itemsize, [s if n > 1 else x.itemsize for n, s in zip(x.shape, x.strides)]
    if any(s < 0 or s % size for s in steps):
        return None
    return tuple(s // size for s in steps)


def _from_numpy(x: Any, name: str) -> Operand:
    no_mask(x, name)
    x = np.asarray(x)
    dtype = dtype_code(x.dtype, name)
    strides = _in_elements(x)
    if strides is None or not x.flags.aligned:
        x = np.array(x, order="C", copy=True)
        strides = _in_elements(x)
    return Operand("numpy", x, x.__array_interface__["data"][0], x.shape, strides, dtype, "cpu", None)


def _from_cupy(x: Any, name: str) -> Operand:
    dtype = dtype_code(x.dtype, name)
    strides = _in_elements(x)
    if strides is None:
        x = cupy_module().ascontiguousarray(x)
        strides = _in_elements(x)
    return Operand("cupy", x, x.data.ptr, x.shape, strides, dtype, f"cuda:{x.device.id}", None)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_DL_DTYPES = {(2, 32): _abi.F32, (2, 64): _abi.F64, (2, 16): _abi.F16, (4, 16): _abi.BF16}
# pinned memory is the host's, managed memory the device's
_DL_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}


def _from_dlpack(x: Any, name: str) -> Operand:
    try:
        kind, index = (int(i) for i in x.__dlpack_device__())
        where = _DL_DEVICES.get(kind)
        if where is not None:
            capsule = x.__dlpack__(stream=1) if where == "cuda" else x.__dlpack__()
            # not one that was used, nor a versioned one, which nobody asked for
            pointer = _capsule_pointer(capsule, b"dltensor")
    except Exception as error:  # whatever the maker's code raises
        raise TypeError(
            f"{name} is a {type(x).__name__} whose memory DLPack cannot share: {error}"
        ) from error
    if where is None:
        raise ValueError(f"{name} is on DLPack device {kind}; expected cpu or cuda")
    t = ctypes.cast(pointer, ctypes.POINTER(_DLTensor)).contents
    if _DL_DEVICES.get(t.device_type) != where or (where == "cuda" and t.device_id != index):
        raise ValueError(
            f"{name} is on DLPack device {kind}, {index} by its __dlpack_device__() and on {t.device_type}, "
            f"{t.device_id} by its capsule; expected one device"
        )
    dtype = _DL_DTYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise TypeError(
            f"{name} has a DLPack dtype of code {t.code} and {t.bits} bits; expected float32, float64, "
            "float16 or bfloat16"
        )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else _dense_strides(shape)
    if any(s < 0 for s in strides):
        raise ValueError(f"{name} has negative strides {strides}; expected none")
    device = "cpu" if where == "cpu" else f"cuda:{index}"
    return Operand(
        "dlpack", (capsule, x), (t.data or 0) + t.byte_offset, shape, strides, dtype, device, _importer(x)
    )


def _importer(x: Any) -> Any:
    """The function by which x's maker takes in an array by DLPack."""
    namespace = getattr(x, "__array_namespace__", None)
    module = namespace() if namespace else sys.modules.get(type(x).__module__.split(".")[0])
    return getattr(module, "from_dlpack", None)


def _dense_strides(shape: tuple) -> tuple:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(x: Operand) -> bool:
    """Whether its elements are stored row-major and without gaps; of one element, or of none, it says nothing
    where the next would be."""
    return 0 in x.shape or all(
        n == 1 or s == step for n, s, step in zip(x.shape, x.strides, _dense_strides(x.shape))
    )


def describe(x: Any, name: str) -> Operand:
    """An Operand for any array; TypeError or ValueError, naming the argument, for anything else."""
    torch, cupy = torch_module(), cupy_module()
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(x, name)
    if isinstance(x, np.ndarray):
        return _from_numpy(x, name)
    if cupy is not None and isinstance(x, cupy.ndarray):
        return _from_cupy(x, name)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x, name)
    raise TypeError(f"{name} is a {type(x).__name__}; {EXPECTED}")


# ---- outputs ----


def check_output(x: Any, name: str) -> Operand:
    """An Operand that may be written to, in place."""
    if isinstance(x, np.ndarray):
        if not x.flags.writeable:
            raise ValueError(f"{name} is read-only")
        if _in_elements(x) is None:
            raise ValueError(f"{name} has strides {x.strides} bytes; expected whole elements, none negative")
        if not x.flags.aligned:
            raise ValueError(
                f"{name} begins at an address that is no multiple of {x.itemsize}; expected an aligned array"
            )
    o = describe(x, name)
    if o.kind == "dlpack":
        raise TypeError(f"{name} is a {type(x).__name__}; an output must be a torch, NumPy or CuPy array")
    if o.kind == "cupy" and o.array is not x:
        raise ValueError(f"{name} has strides {x.strides} bytes; expected whole elements, none negative")
    if o.kind == "torch" and o.array is not x:
        raise ValueError(
            f"{name} is a view whose numbers torch negates (is_neg), or zeros without memory; expected a "
            "plain tensor"
        )
    return o


def empty(like: Operand, shape: tuple, dtype: int) -> Operand:
    """A new row-major array of the maker and on the device of `like`; finish() turns it into what the user
    gets."""
    if like.kind == "torch":
        torch = torch_module()
        made = torch.empty(shape, dtype=getattr(torch, _abi.DTYPE_NAMES[dtype]), device=like.array.device)
        return Operand("torch", made, made.data_ptr(), shape, made.stride(), dtype, like.device, None)
    if like.device == "cpu" and (dtype != _abi.BF16 or like.kind == "numpy"):
        kind = (
            like.array.dtype
            if like.kind == "numpy" and dtype == _abi.BF16
            else np.dtype(_abi.DTYPE_NAMES[dtype])
        )
        return _from_numpy(np.empty(shape, kind), "out")
    return _empty_elsewhere(like, shape, dtype)


def _empty_elsewhere(like: Operand, shape: tuple, dtype: int) -> Operand:
    """Memory from CuPy or torch, for an array whose own maker has no mutable arrays."""
    cupy, torch = cupy_module(), torch_module()
    if cupy is None and torch is None and like.device != "cpu":
        cupy = _import_or_none("cupy")
    if like.device != "cpu" and cupy is not None and dtype != _abi.BF16:
        with cupy.cuda.Device(int(like.device.split(":")[1])):
            return _from_cupy(cupy.empty(shape, _abi.DTYPE_NAMES[dtype]), "out")
    torch = torch or _import_or_none("torch")
    if torch is None:
        raise NotImplementedError(
            f"B is a {_abi.DTYPE_NAMES[dtype]} array on {like.device}: its result needs torch or CuPy for "
            "its memory"
        )
    return _from_torch(
        torch.empty(shape, dtype=getattr(torch, _abi.DTYPE_NAMES[dtype]), device=like.device), "out"
    )


def _import_or_none(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


def finish(out: Operand, like: Operand) -> Any:
    """The result as the maker of `like` has it."""
    if like.kind != "dlpack":
        return out.array
    return like.maker(out.array) if like.maker is not None else out.array


torch_stream: Any = None  # set by _torch: the current stream of a device, by its index


def stream_of(o: Operand) -> int:
    """The stream that work on this array belongs on."""
    if o.device == "cpu":
        return 0
    if o.kind == "torch":
        if torch_stream is None:  # torch was imported later than this package
            from . import _torch  # noqa: F401
        return torch_stream(o.array.device.index)
    if o.kind == "cupy":
        return cupy_module().cuda.get_current_stream(int(o.device.split(":")[1])).ptr
    return 0


def is_capturing(o: Operand) -> bool:
    """Whether work on this array goes into a CUDA graph of torch's."""
    torch = torch_module()
    return (
        o.device != "cpu"
        and torch is not None
        and torch.cuda.is_initialized()
        and torch.cuda.is_current_stream_capturing()
    )


def threads_for(o: Operand) -> int:
    """CPU threads to set for a call: torch's own number where torch is what the program computes with; 0
    leaves OpenMP's."""
    if o.kind == "torch" and o.device == "cpu":
        return torch_module().get_num_threads()
    return 0
