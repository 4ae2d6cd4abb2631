"""Python callables as variants of attention; register_variant is the way to them."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _abi, _context, _mask
from ._arrays import torch_module


@dataclasses.dataclass
class AttentionCall:
    """What a variant of attention gets. q, k, v, out, grad (of out) and dq, dk, dv are views (batch, heads,
    length, size) of the operands' memory, NumPy's on the CPU and torch's on CUDA; lse is (batch, heads,
    length).

    op "attention": writes `out`, and `lse` unless that is None. "attention_backward": reads `out` and `lse`,
    writes dq, dk, dv.
    """

    op: str
    shape: tuple[int, int]  # queries, keys
    heads: int
    kv_heads: int
    size: int
    batch: int
    dtype: str
    scale: float
    causal: bool
    window: int  # 0: none
    wants_lse: bool
    full: bool  # every block is stored
    masks: int  # 1, or one a head
    block: tuple[int, int]
    row_ptr: np.ndarray  # the mask's, in host memory
    col_idx: np.ndarray
    offsets: tuple[np.ndarray, ...]  # of packed queries and keys; empty: none
    device: str
    state: Any = None  # what prepare returned
    stream: int = 0
    q: Any = None
    k: Any = None
    v: Any = None
    out: Any = None
    lse: Any = None
    grad: Any = None
    dq: Any = None
    dk: Any = None
    dv: Any = None

    def twin(self) -> AttentionCall:
        """A copy that shares everything, in a tenth of the time that copy.copy() takes."""
        made = object.__new__(AttentionCall)
        made.__dict__.update(self.__dict__)
        return made

    def dense(self) -> np.ndarray:
        """Booleans (masks, queries, keys), True where a key is kept."""
        return _mask.dense_mask(
            self.row_ptr,
            self.col_idx,
            self.shape,
            self.block,
            self.masks,
            self.causal,
            self.window,
            self.offsets,
        )


def _host(pointer: Any, count: int, kind: Any) -> np.ndarray:
    if not pointer or count == 0:
        return np.empty(0, kind)
    return np.frombuffer((ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(pointer), kind)


def call_of(p: _abi.Problem, view: _abi.PatternView, device: _abi.Device | None) -> AttentionCall:
    t = p.attention
    offsets = ()
    if view.sequences:
        offsets = tuple(_host(x, view.sequences + 1, np.int64) for x in (view.q_offsets, view.kv_offsets))
    return AttentionCall(
        op=_abi.OP_NAMES[p.op].replace("-", "_"),
        shape=(p.m, p.n),
        heads=t.heads,
        kv_heads=t.kv_heads,
        size=t.dim,
        batch=p.batch,
        dtype=_abi.DTYPE_NAMES[p.a_dtype],
        scale=p.alpha,
        causal=bool(t.causal),
        window=t.window,
        wants_lse=bool(t.lse),
        full=view.stored_blocks == view.grid_rows * view.grid_cols,
        masks=1 if view.rows == p.m else t.heads,
        block=(view.block_rows, view.block_cols),
        row_ptr=_host(view.row_ptr, view.grid_rows + 1, np.int64),
        col_idx=_host(view.col_idx, view.stored_blocks, np.int32),
        offsets=offsets,
        device="cpu" if device is None or device.backend == _abi.CPU else f"cuda:{device.index}",
    )


def _is_plain(t: _abi.Attention) -> bool:
    """No option that a call does not name."""
    return t.value_dim in (0, t.dim) and t.softcap == 0 and not t.sinks


def _fill_operands(call: AttentionCall, p: _abi.Problem, operands: Any) -> None:
    from . import _variants

    t = p.attention
    queries = (p.batch, t.heads, p.m, t.dim)
    keys = (p.batch, t.kv_heads, p.n, t.dim)

    def array(i: int, shape: tuple, at: tuple, dtype: str, writable: bool) -> Any:
        if call.device == "cpu":
            return _variants._numpy_view(operands[i] or 0, shape, at, dtype, writable)
        return _variants._torch_view(operands[i] or 0, shape, at, dtype, call.device)

    def heads(i: int, shape: tuple, at: _abi.Heads, writable: bool = False) -> Any:
        return array(i, shape, (at.batch_stride, at.head_stride, at.row_stride, 1), call.dtype, writable)

    back = p.op == _abi.ATTENTION_BACKWARD
    call.q, call.k, call.v = heads(0, queries, t.q), heads(1, keys, t.k), heads(2, keys, t.v)
    call.out = heads(3, queries, t.o, not back)
    if back or t.lse:
        call.lse = array(4, queries[:3], (t.heads * p.m, p.m, 1), "float32", not back)
    if back:
        call.grad = heads(5, queries, t.do_)
        call.dq, call.dk, call.dv = (
            heads(6, queries, t.dq, True),
            heads(7, keys, t.dk, True),
            heads(8, keys, t.dv, True),
        )


_states: dict[int, Any] = {}
_numbers = itertools.count(1)


_kept: dict[tuple, Any] = {}
_MOST_KEPT = 64
_kept_lock = threading.Lock()


def prepared(name: str, prepare: Callable[[AttentionCall], Any] | None, call: AttentionCall) -> Any:
    """What prepare makes of a call, once for all plans of the same problem: a plan for a CUDA graph is made
    while it is captured."""
    if prepare is None:
        return None
    if call.device == "cpu":
        return prepare(call)
    marks = hashlib.blake2b(digest_size=16)
    for array in (call.row_ptr, call.col_idx, *call.offsets):
        marks.update(array.tobytes())
    facts = (
        call.op,
        call.shape,
        call.heads,
        call.kv_heads,
        call.size,
        call.batch,
        call.dtype,
        call.scale,
        call.causal,
        call.window,
        call.block,
        call.device,
    )
    key = (name, prepare, facts, marks.digest())
    found = _kept.get(key)
    if found is None:
        found = _context._aside(lambda: (prepare(call),)) or (prepare(call),)
        with _kept_lock:
            while len(_kept) >= _MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[key] = found
    return found[0]


def register(
    function: Callable[[AttentionCall], None],
    *,
    name: str,
    op: str,
    backend: int,
    dtypes: set[int],
    supports: Callable[[AttentionCall], bool] | None,
    estimate: Callable[[AttentionCall], float] | None,
    prepare: Callable[[AttentionCall], Any] | None,
    revision: str,
    flags: int,
    about: str,
) -> None:
    """See register_variant; `flags` are the library's."""
    from ._variants import failed, unsure

    def c_supports(_variant, problem, pattern, device):
        try:
            p = problem.contents
            if p.a_dtype not in dtypes or not _is_plain(p.attention):
                return False
            return supports is None or bool(supports(call_of(p, pattern.contents, device.contents)))
        except BaseException as error:
            unsure(name, "supports", error)
            return False  # what cannot say so does not

    def c_estimate(_variant, problem, pattern, device):
        try:
            return (
                float(estimate(call_of(problem.contents, pattern.contents, device.contents)))
                if estimate
                else 1e-9
            )
        except BaseException as error:
            unsure(name, "estimate", error)
            return 1e-9

    def c_prepare(prepare_struct, state):
        try:
            s = prepare_struct.contents
            call = call_of(s.problem.contents, s.pattern.contents, s.device.contents)
            number = next(_numbers)
            _states[number] = prepared(name, prepare, call)
            state[0] = number
            return _abi.OK
        except BaseException as error:
            return failed(name, error)

    def c_release(_variant, state):
        _states.pop(state, None)

    def c_launch(launch):
        try:
            l = launch.contents  # noqa: E741
            call = call_of(l.problem.contents, l.pattern.contents, l.device.contents)
            _fill_operands(call, l.problem.contents, l.operands)
            call.state, call.stream = _states.get(l.state), l.stream or 0
            _in_torch(function, call)
            return _abi.OK
        except BaseException as error:
            return failed(name, error)

    variant = _abi.Variant(
        name=name.encode(),
        revision=revision.encode(),
        op=_abi.ATTENTION if op == "attention" else _abi.ATTENTION_BACKWARD,
        backend=backend,
        flags=flags | _abi.V_BATCHED,
        about=about.encode(),
        supports=_abi.SUPPORTS_FN(c_supports),
        estimate=_abi.ESTIMATE_FN(c_estimate),
        prepare=_abi.PREPARE_FN(c_prepare),
        launch=_abi.LAUNCH_FN(c_launch),
        release=_abi.RELEASE_FN(c_release),
    )
    _context.register(backend, variant)


def _in_torch(function: Callable[[AttentionCall], None], call: AttentionCall) -> None:
    torch = torch_module()
    if call.device == "cpu":
        if torch is None:
            function(call)
        else:
            with torch.no_grad():
                function(call)
        return
    with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(call.stream, device=call.device)):
        function(call)
