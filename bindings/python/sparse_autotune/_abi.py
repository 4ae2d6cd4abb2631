"""The C library: where it is, its structs as ctypes sees them, and its errors as Python exceptions.

Nothing here knows arrays. The field names and their meaning are those of ``include/sparse_autotune.h``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import re
import threading
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

# ---- errors ----


class Error(Exception):
    """What the C library reports. Every instance is also of the built-in type that fits (ValueError, ...).

    >>> import sparse_autotune as sa
    >>> try:
    ...     sa.BsrMatrix([0, 2], [1, 0], [[[1.0]], [[2.0]]], (1, 2))
    ... except ValueError as error:
    ...     print(type(error).__name__, error.status)
    ArgumentError SAT_COLUMN_ORDER
    """

    status = ""


class ArgumentError(Error, ValueError):
    """An argument's value is wrong; the message begins with its name."""


class UnsupportedError(Error, NotImplementedError):
    """A combination that the library does not offer."""


class DeviceError(Error, RuntimeError):
    """A device, driver or library is missing or failed."""


class FileError(Error, OSError):
    """A file could not be read or written."""


class OutOfMemoryError(Error, MemoryError):
    """Memory ran out."""


class BusyError(Error, RuntimeError):
    """Somebody else uses it now, another process the cache say; later it may work."""


class CancelledError(Error, RuntimeError):
    """It was stopped before its end."""


_ARGUMENT = {
    "SAT_NULL_POINTER",
    "SAT_MISALIGNED",
    "SAT_BAD_SIZE",
    "SAT_BAD_STRIDE",
    "SAT_OVERLAP",
    "SAT_BAD_ENUM",
    "SAT_BAD_ROW_PTR",
    "SAT_COLUMN_RANGE",
    "SAT_COLUMN_ORDER",
    "SAT_BAD_BLOCK",
    "SAT_BAD_FORMAT",
    "SAT_WRONG_MEMORY",
    "SAT_DUPLICATE",
}
_OTHERS = {
    "SAT_UNSUPPORTED": UnsupportedError,
    "SAT_OUT_OF_MEMORY": OutOfMemoryError,
    "SAT_IO": FileError,
    "SAT_CANCELLED": CancelledError,
    "SAT_BUSY": BusyError,
}

# What a run may find wrong with indices that change; on a GPU it is an earlier run's.
INDEX_FAULTS = {"SAT_BAD_ROW_PTR", "SAT_COLUMN_RANGE", "SAT_COLUMN_ORDER"}

OK, UNSUPPORTED, LIBRARY_ERROR, MISALIGNED = 0, 12, 18, 2
NOT_FOUND, IO, BAD_FORMAT = 14, 15, 16


def failure(status: int, names: dict[str, str] | None = None) -> Error:
    """The exception for a status, with this thread's message; `names` says what the caller calls the
    operands."""
    name = lib.sat_status_name(status).decode()
    message = lib.sat_last_error().decode(errors="replace")
    for c_name, python_name in (names or {}).items():
        message = re.sub(
            rf"\b{c_name}\b(?=(:| is| at| overlaps))|(?<=overlaps ){c_name}\b", python_name, message
        )
    asked = message.startswith("only is ")  # what else is not found is a device
    kind = ArgumentError if asked or name in _ARGUMENT else _OTHERS.get(name, DeviceError)
    error = kind(f"{message or 'the call failed'} ({name})")
    error.status = name
    return error


# thread and what ended a callback there, KeyboardInterrupt say: C cannot pass it on
_interrupts: list[tuple[int, BaseException]] = []


def keep_interrupt(error: BaseException) -> None:
    """Keeps what ended a callback for when this thread's call has returned."""
    _interrupts.append((threading.get_ident(), error))


def _own_interrupts() -> list[tuple[int, BaseException]]:
    return [entry for entry in list(_interrupts) if entry[0] == threading.get_ident()]


def raise_interrupt() -> None:
    """Passes on what ended a callback of this thread's last call: the first, where several ended so."""
    if not _interrupts:
        return
    mine = _own_interrupts()
    for entry in mine:
        _interrupts.remove(entry)
    if mine:
        raise mine[0][1]


def watch() -> Callable[[None], bool]:
    """A progress function that stops a race once a callback was ended, or a handler of signals raised:
    Ctrl-C's, say.

    It is a generator's, since Python calls handlers where code goes on: here inside the try. In a plain
    function that C calls this is before the first line, and what is raised there is lost.
    """

    def answers():
        while True:
            try:
                yield not _own_interrupts()
            except GeneratorExit:
                raise
            except BaseException as error:
                keep_interrupt(error)

    made = answers()
    next(made)  # to its first yield
    return made.send


def check(status: int, names: dict[str, str] | None = None) -> None:
    raise_interrupt()
    if status:
        raise failure(status, names)


def text(x: object, name: str) -> bytes:
    """A str as C takes it, which would end at a NUL."""
    if not isinstance(x, str):
        raise TypeError(f"{name} is {x!r}; expected a str")
    if "\0" in x:
        raise ValueError(f"{name} is {x!r}; expected a str without NUL")
    return x.encode()


# ---- vocabulary ----

F32, F64, F16, BF16 = 1, 2, 3, 4
DTYPE_NAMES = {F32: "float32", F64: "float64", F16: "float16", BF16: "bfloat16"}
DTYPE_SHORT = {F32: "f32", F64: "f64", F16: "f16", BF16: "bf16"}
DTYPE_SIZE = {F32: 4, F64: 8, F16: 2, BF16: 2}
DTYPES = {name: code for code, name in DTYPE_NAMES.items()}
I32, I64 = 1, 2
MATMUL, SAMPLED, ATTENTION, ATTENTION_BACKWARD, GROUPED, GROUPED_WEIGHTS = 1, 2, 3, 4, 5, 6
OP_NAMES = {
    MATMUL: "matmul",
    SAMPLED: "sampled",
    ATTENTION: "attention",
    ATTENTION_BACKWARD: "attention-backward",
    GROUPED: "grouped",
    GROUPED_WEIGHTS: "grouped-weights",
}
CPU, CUDA = 1, 2
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
EFFORTS = {"default": 0, "off": 1, "cached": 2, "quick": 3, "full": 4, "pinned": 5}
VERDICTS = {1: "ok", 2: "wrong", 3: "error", 4: "skipped", 5: "memory"}
ALLOW_TF32, ALLOW_NONDETERMINISTIC, ALLOW_DENSE, FIXED_VALUES, ALLOW_BROADCAST = 1, 2, 4, 8, 16
V_NONDETERMINISTIC, V_DENSE, V_LIBRARY, V_BATCHED = 2, 4, 8, 16


class Sized(Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.size = ctypes.sizeof(self)


class Device(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("backend", c_int),
        ("index", c_int),
        ("name", c_char * 128),
        ("identity", c_char * 192),
        ("isa", c_uint32),
        ("threads", c_int),
        ("multiprocessors", c_int),
        ("capability", c_int),
        ("l1_bytes", c_int64),
        ("l2_bytes", c_int64),
        ("l3_bytes", c_int64),
        ("memory_bytes", c_int64),
        ("memory_rate", c_double),
        ("flop_rate", c_double * 32),
        ("l2_rate", c_double),
        ("tf32_rate", c_double),
        ("measured", c_bool),
        ("shared_bytes", c_int64),
        ("driver", c_int),
    ]


ALLOC_FN = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
FREE_FN = CFUNCTYPE(None, c_void_p, c_void_p)


class Allocator(Sized):
    _fields_ = [("size", c_size_t), ("alloc", ALLOC_FN), ("free", FREE_FN), ("user", c_void_p)]


AGREED_SIZE = 256
GET_FN = CFUNCTYPE(c_int, c_void_p, c_char_p, c_double, c_void_p)
PUT_FN = CFUNCTYPE(c_int, c_void_p, c_char_p, c_char_p, c_void_p)


class Agreement(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("world", c_int),
        ("wait_seconds", c_double),
        ("get", GET_FN),
        ("put", PUT_FN),
        ("user", c_void_p),
    ]


class ContextOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_char_p),
        ("cache_dir", c_char_p),
        ("effort", c_int),
        ("measure", c_int),
        ("threads", c_int),
        ("multiprocessors", c_int),
        ("background", c_bool),
        ("budget_seconds", c_double),
        ("memory_limit", c_size_t),
        ("allocator", POINTER(Allocator)),
        ("log", c_void_p),
        ("log_user", c_void_p),
    ]


class Bsr(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("cols", c_int64),
        ("block_rows", c_int64),
        ("block_cols", c_int64),
        ("stored_blocks", c_int64),
        ("index_type", c_int),
        ("row_ptr", c_void_p),
        ("col_idx", c_void_p),
        ("sequences", c_int64),
        ("q_offsets", c_void_p),
        ("kv_offsets", c_void_p),
    ]


class DynamicBsr(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("cols", c_int64),
        ("block_rows", c_int64),
        ("block_cols", c_int64),
        ("capacity", c_int64),
        ("index_type", c_int),
        ("row_ptr", c_void_p),
        ("col_idx", c_void_p),
        ("density", c_double),
        ("skew", c_double),
        ("mask_batch", c_int64),
        ("mask_heads", c_int64),
        ("row_counts", c_void_p),
        ("row_stride", c_int64),
    ]


class PatternView(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("cols", c_int64),
        ("block_rows", c_int64),
        ("block_cols", c_int64),
        ("grid_rows", c_int64),
        ("grid_cols", c_int64),
        ("stored_blocks", c_int64),
        ("stored_elements", c_int64),
        ("row_ptr", c_void_p),
        ("col_idx", c_void_p),
        ("t_ptr", c_void_p),
        ("t_row", c_void_p),
        ("t_block", c_void_p),
        ("device_row_ptr", c_void_p),
        ("device_col_idx", c_void_p),
        ("device_t_ptr", c_void_p),
        ("device_t_row", c_void_p),
        ("device_t_block", c_void_p),
        ("density", c_double),
        ("skew", c_double),
        ("t_skew", c_double),
        ("overlap", c_double),
        ("max_row", c_int64),
        ("max_col", c_int64),
        ("empty_rows", c_int64),
        ("sequences", c_int64),
        ("q_offsets", c_void_p),
        ("kv_offsets", c_void_p),
        ("device_q_offsets", c_void_p),
        ("device_kv_offsets", c_void_p),
        ("row_end", c_void_p),
        ("device_row_end", c_void_p),
        ("dynamic", c_void_p),
        ("mask_batch", c_int64),
        ("mask_heads", c_int64),
        ("mask_rows", c_int64),
    ]


class Layout(Structure):
    _fields_ = [("row_stride", c_int64), ("col_stride", c_int64), ("batch_stride", c_int64)]


class Heads(Structure):
    _fields_ = [("batch_stride", c_int64), ("head_stride", c_int64), ("row_stride", c_int64)]


class Attention(Structure):
    _fields_ = [
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("causal", c_bool),
        ("window", c_int64),
        ("lse", c_bool),
        ("q", Heads),
        ("k", Heads),
        ("v", Heads),
        ("o", Heads),
        ("dq", Heads),
        ("dk", Heads),
        ("dv", Heads),
        ("do_", Heads),
        ("value_dim", c_int64),
        ("softcap", c_double),
        ("sinks", c_bool),
    ]


class Matmul(Structure):
    _fields_ = [("transpose", c_int), ("bias", c_int), ("activation", c_int)]


class Grouped(Structure):
    _fields_ = [
        ("groups", c_int64),
        ("offset_type", c_int),
        ("bias", c_bool),
        ("activation", c_int),
        ("skew", c_double),
    ]


class Part(Union):
    """What one operation has for itself."""

    _fields_ = [
        ("room", c_uint64 * 48),
        ("matmul", Matmul),
        ("attention", Attention),
        ("grouped", Grouped),
    ]


class Problem(Sized):
    _anonymous_ = ("part",)
    _fields_ = [
        ("size", c_size_t),
        ("op", c_int),
        ("flags", c_uint32),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("batch", c_int64),
        ("a_dtype", c_int),
        ("b_dtype", c_int),
        ("c_dtype", c_int),
        ("compute_dtype", c_int),
        ("a", Layout),
        ("b", Layout),
        ("c", Layout),
        ("a_align", c_uint32),
        ("b_align", c_uint32),
        ("c_align", c_uint32),
        ("reserved_align", c_uint32),
        ("alpha", c_double),
        ("beta", c_double),
        ("reserved", c_uint64 * 8),
        ("part", Part),
    ]


class PlanInfo(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("variant", c_char * 128),
        ("cached", c_bool),
        ("tuned", c_bool),
        ("verified", c_bool),
        ("pattern_verified", c_bool),
        ("tuning_seconds", c_double),
        ("prepare_seconds", c_double),
        ("workspace_bytes", c_size_t),
        ("flops", c_double),
        ("bytes", c_double),
        ("estimate_seconds", c_double),
    ]


class Result(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("variant", c_char * 128),
        ("revision", c_char * 48),
        ("verdict", c_int),
        ("seconds", c_double),
        ("spread", c_double),
        ("error", c_double),
        ("estimate_seconds", c_double),
        ("prepare_seconds", c_double),
        ("workspace_bytes", c_size_t),
        ("runs", c_int),
        ("may_win", c_bool),
        ("message", c_char * 192),
        ("least_seconds", c_double),
        ("threads", c_int),
    ]


PROGRESS_FN = CFUNCTYPE(c_bool, c_void_p)  # done, total and what follow, which nobody asks for


class RaceOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("fresh", c_bool),
        ("discard", c_bool),
        ("only", c_char_p),
        ("progress", PROGRESS_FN),
        ("progress_user", c_void_p),
    ]


class RaceInfo(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("cached", c_bool),
        ("seconds", c_double),
        ("flops", c_double),
        ("bytes", c_double),
        ("peak_bytes", c_size_t),
        ("key", c_char * 512),
        ("disturbed", c_bool),
    ]


class Launch(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("variant", c_void_p),
        ("device", POINTER(Device)),
        ("problem", POINTER(Problem)),
        ("pattern", POINTER(PatternView)),
        ("operands", POINTER(c_void_p)),
        ("workspace", c_void_p),
        ("state", c_void_p),
        ("stream", c_void_p),
        ("threads", c_int),
    ]


class Prepare(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("variant", c_void_p),
        ("device", POINTER(Device)),
        ("problem", POINTER(Problem)),
        ("pattern", POINTER(PatternView)),
        ("workspace", c_void_p),
        ("stream", c_void_p),
    ]


class Instance(Structure):
    _fields_ = [("dtype", c_int), ("tile_m", c_int), ("tile_n", c_int), ("tile_k", c_int), ("option", c_int)]


SUPPORTS_FN = CFUNCTYPE(c_bool, c_void_p, POINTER(Problem), POINTER(PatternView), POINTER(Device))
ESTIMATE_FN = CFUNCTYPE(c_double, c_void_p, POINTER(Problem), POINTER(PatternView), POINTER(Device))
LAUNCH_FN = CFUNCTYPE(c_int, POINTER(Launch))
PREPARE_FN = CFUNCTYPE(c_int, POINTER(Prepare), POINTER(c_void_p))
RELEASE_FN = CFUNCTYPE(None, c_void_p, c_void_p)


class Variant(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("revision", c_char_p),
        ("op", c_int),
        ("backend", c_int),
        ("flags", c_uint32),
        ("priority", c_int),
        ("instance", Instance),
        ("reserved", c_int * 7),
        ("about", c_char_p),
        ("user", c_void_p),
        ("supports", SUPPORTS_FN),
        ("estimate", ESTIMATE_FN),
        ("workspace", c_void_p),
        ("prepare", PREPARE_FN),
        ("refresh", c_void_p),
        ("launch", LAUNCH_FN),
        ("release", RELEASE_FN),
    ]


VISIT_FN = CFUNCTYPE(c_bool, c_void_p, c_char_p, c_char_p)

# ---- the library ----

_SIGNATURES = {
    "sat_status_name": (c_char_p, [c_int]),
    "sat_last_error": (c_char_p, []),
    "sat_version": (c_char_p, []),
    "sat_context_create": (c_int, [POINTER(ContextOptions), POINTER(c_void_p)]),
    "sat_context_device": (POINTER(Device), [c_void_p]),
    "sat_context_effort": (c_int, [c_void_p]),
    "sat_context_ignored": (c_int, [c_void_p, c_char_p, c_size_t]),
    "sat_context_agree": (c_int, [c_void_p, POINTER(Agreement)]),
    "sat_agreement_folder": (c_int, [c_char_p, c_int, c_int, POINTER(Agreement)]),
    "sat_pattern_create": (c_int, [c_void_p, POINTER(Bsr), POINTER(c_void_p)]),
    "sat_pattern_create_dynamic": (c_int, [c_void_p, POINTER(DynamicBsr), POINTER(c_void_p)]),
    "sat_pattern_fault": (c_int, [c_void_p, c_bool]),
    "sat_pattern_free": (None, [c_void_p]),
    "sat_pattern_get": (c_int, [c_void_p, POINTER(PatternView)]),
    "sat_plan_create": (c_int, [c_void_p, c_void_p, POINTER(Problem), POINTER(c_void_p)]),
    "sat_plan_create_with": (c_int, [c_void_p, c_void_p, POINTER(Problem), c_char_p, POINTER(c_void_p)]),
    "sat_plan_dup": (c_int, [c_void_p, POINTER(c_void_p)]),
    "sat_plan_free": (None, [c_void_p]),
    "sat_run": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
    "sat_plan_refresh": (c_int, [c_void_p, c_void_p, c_void_p]),
    "sat_plan_get_info": (c_int, [c_void_p, POINTER(PlanInfo)]),
    "sat_stream_wait": (c_int, [c_void_p, c_void_p]),
    "sat_race_run": (c_int, [c_void_p, c_void_p, POINTER(Problem), POINTER(RaceOptions), POINTER(c_void_p)]),
    "sat_race_free": (None, [c_void_p]),
    "sat_race_count": (c_size_t, [c_void_p]),
    "sat_race_at": (POINTER(Result), [c_void_p, c_size_t]),
    "sat_race_best": (POINTER(Result), [c_void_p]),
    "sat_race_get_info": (c_int, [c_void_p, POINTER(RaceInfo)]),
    "sat_variant_register": (c_int, [c_void_p, POINTER(Variant)]),
    "sat_variant_count": (c_size_t, [c_void_p]),
    "sat_variant_at": (POINTER(Variant), [c_void_p, c_size_t]),
    "sat_fail": (c_int, [c_int, c_char_p]),
    "sat_cache_path": (c_char_p, [c_void_p]),
    "sat_cache_visit": (c_int, [c_void_p, VISIT_FN, c_void_p]),
    "sat_cache_visit_untuned": (c_int, [c_void_p, VISIT_FN, c_void_p]),
    "sat_cache_export": (c_int, [c_void_p, c_char_p]),
    "sat_cache_import": (c_int, [c_void_p, c_char_p, POINTER(c_int64)]),
    "sat_cache_clear": (c_int, [c_void_p, c_char_p, POINTER(c_int64)]),
    "sat_problem_key": (c_int, [c_void_p, c_void_p, POINTER(Problem), c_char_p, c_size_t]),
}


def _share_openmp() -> None:
    """Older wheels of torch have OpenMP by a file name of their own. Loaded first it serves us too; else a
    process that imports torch later has two, each with threads of its own."""
    with contextlib.suppress(ValueError, OSError):  # a stand-in for torch; a file that cannot be loaded
        torch = importlib.util.find_spec("torch")
        for folder in (torch.submodule_search_locations if torch else None) or ():
            for file in sorted(Path(folder, "lib").glob("libgomp-*.so*")):
                ctypes.CDLL(str(file))


def _open() -> ctypes.CDLL:
    _share_openmp()
    path = os.environ.get("SPARSE_AUTOTUNE_LIBRARY") or str(Path(__file__).parent / "libsparse_autotune.so")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"sparse_autotune: its library could not be loaded: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"sparse_autotune: {path} has no {name}: it belongs to another version"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


lib = _open()
version = lib.sat_version().decode()

ending: list[bool] = []  # holds something once the interpreter is on its way out
atexit.register(ending.append, True)

# OpenMP's own functions, of the very OpenMP that the library uses.
set_threads = lib.omp_set_num_threads
set_threads.restype, set_threads.argtypes = None, [c_int]
get_threads = lib.omp_get_max_threads
get_threads.restype, get_threads.argtypes = c_int, []


class openmp_threads:
    """Sets OpenMP's threads for what is inside; 0 leaves them alone."""

    __slots__ = ("before", "wanted")

    def __init__(self, wanted: int):
        self.wanted = wanted

    def __enter__(self) -> None:
        self.before = get_threads() if self.wanted else 0
        if self.before != self.wanted:
            set_threads(self.wanted)

    def __exit__(self, *_exception: object) -> None:
        if self.before != self.wanted:
            set_threads(self.before)


def address(function) -> int:
    return ctypes.cast(function, c_void_p).value or 0
