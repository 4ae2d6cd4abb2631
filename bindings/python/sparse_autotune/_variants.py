"""Variants that are Python callables: they race, are verified and serve like any other."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import _abi, _attention_variants, _context, _mask
from ._arrays import torch_module

_OPS = {
    "matmul": _abi.MATMUL,
    "sampled": _abi.SAMPLED,
    "attention": _abi.ATTENTION,
    "attention_backward": _abi.ATTENTION_BACKWARD,
}
_BACKENDS = {"cpu": _abi.CPU, "cuda": _abi.CUDA}
_ACTIVATION_NAMES = {code: name for name, code in _abi.ACTIVATIONS.items()}


@dataclasses.dataclass
class VariantCall:
    """What a registered callable gets. Arrays are views of the operands' memory: NumPy's on the CPU, torch's
    on CUDA.

    matmul: ``out[...] = activation(alpha * op(A) @ b + beta * out + bias)``; sampled: `a` is X, `b` is Y,
    `out` the values.
    """

    op: str
    shape: tuple[int, int]  # of the sparse matrix as stored
    block: tuple[int, int]
    row_ptr: Any
    col_idx: Any
    values: Any  # matmul: the stored blocks; sampled: None
    a: Any  # sampled: X; matmul: None
    b: Any
    out: Any
    bias: Any
    alpha: float
    beta: float
    activation: str
    transpose: bool
    stream: int


def interrupted(error: BaseException) -> None:
    """Keeps what is no failure of the callback's own, such as KeyboardInterrupt, for when the library has
    returned."""
    if not isinstance(error, Exception):
        _abi.keep_interrupt(error)


def unsure(name: str, question: str, error: BaseException) -> None:
    """Warns of a question that raised instead of answering, and goes on without it."""
    interrupted(error)
    if isinstance(error, Exception):
        with contextlib.suppress(RuntimeWarning):  # which may be set to raise
            warnings.warn(
                f"{name}: {question} raised {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2
            )


def failed(name: str, error: BaseException) -> int:
    """The status of a callback that raised; this thread's message says what."""
    interrupted(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{name}: {type(error).__name__}: {error} (line {where.lineno} of {where.filename})"
    _abi.lib.sat_fail(_abi.LIBRARY_ERROR, text.replace("%", "%%").encode()[:400])
    return _abi.LIBRARY_ERROR


def _supports_plain(call: dict[str, Any]) -> bool:
    return (
        call["alpha"] == 1.0
        and call["beta"] == 0.0
        and not call["bias"]
        and call["activation"] == "none"
        and not call["transpose"]
    )


def _check_word(x: Any, name: str, most: int) -> None:
    """Names and revisions stand in lines of the cache; the library has the same rule."""
    _abi.text(x, name)
    if not 1 <= len(x) <= most or not (x.isascii() and x.isprintable()) or "," in x:
        raise ValueError(f"{name} is {x!r}; expected 1 to {most} printable ASCII characters, no ','")


def _dtype_codes(dtypes: Any) -> set[int]:
    if isinstance(dtypes, str) or not isinstance(dtypes, Iterable):
        raise TypeError(f"dtypes is {dtypes!r}; expected a tuple of names such as ('float32',)")
    names = tuple(dtypes)
    for dtype in names:
        if not isinstance(dtype, str) or dtype not in _abi.DTYPES:
            raise ValueError(f"dtypes holds {dtype!r}; expected names such as 'float32'")
    if not names:
        raise ValueError(f"dtypes is {dtypes!r}; expected at least one name such as 'float32'")
    return {_abi.DTYPES[dtype] for dtype in names}


def register_variant(
    function: Callable[[Any], None],
    *,
    name: str,
    op: str = "matmul",
    backend: str = "cpu",
    dtypes: tuple[str, ...] = ("float32",),
    supports: Callable[[Any], bool] | None = None,
    estimate: Callable[[Any], float] | None = None,
    prepare: Callable[[Any], Any] | None = None,
    revision: str = "1",
    deterministic: bool = True,
    dense: bool = False,
    about: str = "a Python callable",
) -> None:
    """Lets a Python callable, a Triton kernel say, take part in every race from now on.

    It runs in this process, so it is trusted not to crash it; its results are not: it is verified like any
    other, and serves only after that. It writes into `call.out` and returns nothing; on CUDA it queues on
    torch's current stream, which is `call.stream` while it runs.

    `supports(problem)` and `estimate(problem)` get a dict with the sizes, dtypes, layouts and scalars of the
    call. Without `supports` it is asked for plain products only: alpha 1, beta 0, no bias, activation or
    transpose. `estimate` gives seconds; without it the variant is tried in every race. Raise `revision` when
    old timings no longer hold.

    With `op` "attention" or "attention_backward" all of them get an AttentionCall, and `prepare(call)`, whose
    operands are None, is called once before a plan first runs; what it returns is `call.state` from then on.

    >>> import numpy as np, sparse_autotune as sa
    >>> def by_rows(call):
    ...     call.out[...] = 0
    ...     br, bc = call.block
    ...     for i in range(len(call.row_ptr) - 1):
    ...         for t in range(call.row_ptr[i], call.row_ptr[i + 1]):
    ...             j = call.col_idx[t]
    ...             call.out[i * br:(i + 1) * br] += call.values[t] @ call.b[j * bc:(j + 1) * bc]
    >>> def divides(problem):
    ...     rows, cols = problem["block"]
    ...     return problem["plain"] and problem["m"] % rows == 0 and problem["k"] % cols == 0
    >>> sa.register_variant(by_rows, name="cpu_matmul_f32_any_python_rows", supports=divides)
    >>> A = sa.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=32)
    >>> race = sa.benchmark(A, np.ones((64, 64), np.float32), only="cpu_matmul_f32_any_python_rows")
    >>> race[0].verdict
    'ok'
    """
    for what, value in (
        ("function", function),
        ("supports", supports),
        ("estimate", estimate),
        ("prepare", prepare),
    ):
        if not callable(value) and (value is not None or what == "function"):
            raise TypeError(f"{what} is {value!r}; expected a callable")
    _check_word(name, "name", 127)
    _check_word(revision, "revision", 47)
    _abi.text(about, "about")
    for value, words, what in ((op, _OPS, "op"), (backend, _BACKENDS, "backend")):
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{what} is {value!r}; expected one of {', '.join(words)}")
    codes = _dtype_codes(dtypes)
    if backend == "cuda" and torch_module() is None:
        raise RuntimeError("backend is 'cuda': its arrays are torch's, and torch is not imported")
    flags = (0 if _mask.flag(deterministic, "deterministic") else _abi.V_NONDETERMINISTIC) | (
        _abi.V_DENSE if _mask.flag(dense, "dense") else 0
    )
    if not _context._contexts:  # so that a name that is taken is seen now
        _context.get("cpu")
    if op.startswith("attention"):
        _attention_variants.register(
            function,
            name=name,
            op=op,
            backend=_BACKENDS[backend],
            dtypes=codes,
            supports=supports,
            estimate=estimate,
            prepare=prepare,
            revision=revision,
            flags=flags,
            about=about,
        )
        return
    if prepare is not None:
        raise ValueError(f"prepare is given beside op {op!r}; expected it with attention only")
    accepts = supports or _supports_plain

    def c_supports(_variant, problem, pattern, _device):
        try:
            p = problem.contents
            return (
                p.a_dtype in codes and p.c_dtype == p.a_dtype and bool(accepts(_facts(p, pattern.contents)))
            )
        except BaseException as error:
            unsure(name, "supports", error)
            return False  # what cannot say so does not

    def c_estimate(_variant, problem, pattern, _device):
        try:
            return float(estimate(_facts(problem.contents, pattern.contents))) if estimate else 1e-9
        except BaseException as error:
            unsure(name, "estimate", error)
            return 1e-9

    def c_launch(launch):
        try:
            _launch(function, launch.contents)
            return _abi.OK
        except BaseException as error:
            return failed(name, error)

    variant = _abi.Variant(
        name=name.encode(),
        revision=revision.encode(),
        op=_OPS[op],
        backend=_BACKENDS[backend],
        flags=flags,
        about=about.encode(),
        supports=_abi.SUPPORTS_FN(c_supports),
        estimate=_abi.ESTIMATE_FN(c_estimate),
        launch=_abi.LAUNCH_FN(c_launch),
    )
    _context.register(_BACKENDS[backend], variant)


def _facts(p: _abi.Problem, view: _abi.PatternView) -> dict[str, Any]:
    facts = {
        "op": "sampled" if p.op == _abi.SAMPLED else "matmul",
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "batch": p.batch,
        "block": (view.block_rows, view.block_cols),
        "stored_blocks": view.stored_blocks,
        "density": view.density,
        "dtype": _abi.DTYPE_NAMES[p.a_dtype],
        "transpose": bool(p.matmul.transpose),
        "alpha": p.alpha,
        "beta": p.beta,
        "bias": bool(p.matmul.bias),
        "activation": _ACTIVATION_NAMES[p.matmul.activation],
        "flags": p.flags & ~_abi.ALLOW_BROADCAST,
        "a_strides": (p.a.row_stride, p.a.col_stride),
        "b_strides": (p.b.row_stride, p.b.col_stride),
        "out_strides": (p.c.row_stride, p.c.col_stride),
        "a_align": p.a_align,
        "b_align": p.b_align,
        "out_align": p.c_align,
    }
    facts["plain"] = _supports_plain(facts)
    return facts


# ---- arrays over the operands' memory ----


def _numpy_view(pointer: int, shape: tuple, strides: tuple | None, dtype: str, writable: bool) -> np.ndarray:
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)  # NumPy has no bfloat16 of its own
    if 0 in shape or not pointer:
        return np.empty(shape, kind)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if strides else int(np.prod(shape))
    buffer = (ctypes.c_char * (span * kind.itemsize)).from_address(pointer)
    flat = np.frombuffer(buffer, kind)
    view = (
        np.lib.stride_tricks.as_strided(flat, shape, [s * kind.itemsize for s in strides])
        if strides
        else flat.reshape(shape)
    )
    if not writable:
        view.flags.writeable = False
    return view


class _CudaMemory:
    def __init__(self, pointer: int, count: int, kind: str):
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": (count,),
            "typestr": kind,
            "version": 3,
        }


def _torch_view(pointer: int, shape: tuple, strides: tuple | None, dtype: str, device: str) -> Any:
    torch = torch_module()
    kind = {
        "float32": "<f4",
        "float64": "<f8",
        "float16": "<f2",
        "bfloat16": "<i2",
        "int32": "<i4",
        "int64": "<i8",
    }[dtype]
    if 0 in shape or not pointer:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if strides else int(np.prod(shape))
    flat = torch.as_tensor(_CudaMemory(pointer, span, kind), device=device).view(getattr(torch, dtype))
    return flat.as_strided(shape, strides) if strides else flat.view(shape)


def _launch(function: Callable[[VariantCall], None], launch: _abi.Launch) -> None:
    p, view, device = launch.problem.contents, launch.pattern.contents, launch.device.contents
    cuda = device.backend == _abi.CUDA
    where = f"cuda:{device.index}"

    def array(pointer: Any, shape: tuple, strides: tuple | None, dtype: str, writable: bool = False) -> Any:
        if cuda:
            return _torch_view(pointer or 0, shape, strides, dtype, where)
        return _numpy_view(pointer or 0, shape, strides, dtype, writable)

    def dense(i: int, shape: tuple, layout: _abi.Layout, dtype: int, writable: bool = False) -> Any:
        return array(
            launch.operands[i],
            shape,
            (layout.row_stride, layout.col_stride),
            _abi.DTYPE_NAMES[dtype],
            writable,
        )

    blocks = (view.stored_blocks, view.block_rows, view.block_cols)
    sampled = p.op == _abi.SAMPLED
    call = VariantCall(
        op="sampled" if sampled else "matmul",
        shape=(view.rows, view.cols),
        block=blocks[1:],
        row_ptr=array(view.device_row_ptr, (view.grid_rows + 1,), None, "int64"),
        col_idx=array(view.device_col_idx, (view.stored_blocks,), None, "int32"),
        values=None if sampled else array(launch.operands[0], blocks, None, _abi.DTYPE_NAMES[p.a_dtype]),
        a=dense(0, (p.m, p.k), p.a, p.a_dtype) if sampled else None,
        b=dense(1, (p.k, p.n), p.b, p.b_dtype),
        out=array(launch.operands[2], blocks, None, _abi.DTYPE_NAMES[p.c_dtype], True)
        if sampled
        else dense(2, (p.m, p.n), p.c, p.c_dtype, True),
        bias=array(launch.operands[3], (p.m,), None, _abi.DTYPE_NAMES[p.c_dtype]) if p.matmul.bias else None,
        alpha=p.alpha,
        beta=p.beta,
        activation=_ACTIVATION_NAMES[p.matmul.activation],
        transpose=bool(p.matmul.transpose),
        stream=launch.stream or 0,
    )
    if not cuda:
        function(call)
        return
    torch = torch_module()
    with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(launch.stream or 0, device=where)):
        function(call)
