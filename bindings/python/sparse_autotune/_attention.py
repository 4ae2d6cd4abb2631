"""Attention: from whatever came in to one problem, and a plan that runs it."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from . import _abi, _arrays, _ops, _products
from ._arrays import Operand, refuse_nested, torch_module
from ._mask import AttentionMask, as_mask, flag, whole
from ._pattern import ATTENTION_NAMES, Kept, Pattern, alignment, launch, problem_of
from ._sparse import is_sparse_tensor, uncompiled

# Set by _torch.attention once torch is there.
_torch_attention: Any = None
_torch_quick: Any = None
_torch_forward: Any = None

MOST_SIZE = 576  # of a head
MOST_DENSE = 256  # patterns that store everything, by lengths


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    *,
    return_lse: bool = False,
    deterministic: bool = True,
    allow_tf32: bool | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    attn_mask: Any = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    enable_gqa: bool = True,
) -> Any:
    """``softmax(scale * q @ k.T where kept) @ v``, dense or over the blocks of a mask.

    q is (..., heads, queries, size), k and v are (..., kv heads, keys, size), as in torch's
    `scaled_dot_product_attention`; heads may be a multiple of the kv heads. Sizes are from 1 to 576, and that
    of v may be another one: it is the result's. Any strides do as long as an element's neighbour is its
    neighbour in memory, so views of (batch, length, heads, size) and of packed QKV are not copied. The result
    is of q's kind and has q's layout.

    - ``mask``: an AttentionMask, the blocks of a BsrMatrix, or a BlockMask of FlexAttention.
    - ``causal``: keys up to a query's diagonal position: that of the last query is the last key.
    - ``window``: keys at a distance below this from that position.
    - ``scale``: by default ``size ** -0.5``.
    - ``return_lse``: also the logarithm of the sum of the exponentials, float32, (..., heads, queries); it
      has no gradient.
    - ``deterministic=False`` lets variants take part whose rounding depends on timing; ``allow_tf32`` as in
      `matmul`.
    - ``softcap``: scores s become ``softcap * tanh(s / softcap)``, as Gemma has them.
    - ``sinks``: (heads), a logit a head that is weighed beside the scores and has no value, as gpt-oss has
      them. The LSE counts it; float32 is what it is computed in.
    - ``attn_mask``, ``is_causal``, ``dropout_p`` and ``enable_gqa`` are for calls that were written for
      torch.

    A query that sees nothing gets zeros. Gradients flow to q, k, v and sinks and are deterministic too.

    >>> import numpy as np, sparse_autotune as sa
    >>> q = k = v = np.ones((1, 2, 64, 16), np.float32)
    >>> sa.attention(q, k, v, causal=True).shape
    (1, 2, 64, 16)
    >>> out, lse = sa.attention(q, k, v, sa.AttentionMask.window(64, 8, block=16), return_lse=True)
    >>> out[0, 0, 20, 0], lse.shape
    (np.float32(1.0), (1, 2, 64))
    """
    if is_causal is not False or attn_mask is not None or dropout_p or enable_gqa is not True:
        mask, causal = _as_torch_means(q, k, mask, causal, attn_mask, is_causal, dropout_p, enable_gqa)
    if mask is not None and not isinstance(mask, AttentionMask):
        made = as_mask(mask, "mask" if attn_mask is None else "attn_mask")
        # with a mask that torch.compile can follow, if it follows at all
        again = _attention_uncompiled if is_sparse_tensor(mask) else attention
        return again(
            q,
            k,
            v,
            made,
            causal,
            window,
            scale,
            return_lse=return_lse,
            deterministic=deterministic,
            allow_tf32=allow_tf32,
            softcap=softcap,
            sinks=sinks,
        )
    if return_lse is not False:
        return_lse = flag(return_lse, "return_lse")
    if _ops._compiling():
        return _torch_attention(
            q, k, v, mask, causal, window, scale, return_lse, deterministic, allow_tf32, softcap, sinks
        )
    spec = Spec(causal, window, scale, deterministic, allow_tf32, mask, softcap)
    if _torch_quick is not None and sinks is None:
        result = _torch_quick(q, k, v, mask, spec, return_lse)
        if result is not None:
            return result
        _abi.raise_interrupt()
    torch = torch_module()
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        refuse_nested(torch, x, name)
    if torch is not None and isinstance(q, torch.Tensor):
        for x, name in ((k, "k"), (v, "v")):
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, as q is")
        if _torch_attention is None:  # torch was imported later than this package
            from . import _torch as _
        if sinks is not None or any(_ops.wants_torch(torch, None, x, None, None) for x in (q, k, v)):
            return _torch_attention(
                q,
                k,
                v,
                mask,
                causal,
                window,
                scale,
                return_lse,
                deterministic,
                allow_tf32,
                softcap,
                sinks,
                spec,
            )
        out, lse = _torch_forward(q, k, v, mask, spec, return_lse)
    else:
        for x, name in ((k, "k"), (v, "v"), (sinks, "sinks")):
            if (
                torch is not None
                and isinstance(x, torch.Tensor)
                and x.requires_grad
                and torch.is_grad_enabled()
            ):
                raise RuntimeError(
                    f"{name} requires grad, and q is a {type(q).__name__}, whose result could not: use torch "
                    "tensors"
                )
        out, lse, _ = forward(q, k, v, mask, spec, return_lse, sinks_array=sinks)
    return (out, lse) if return_lse else out


_attention_uncompiled = uncompiled(attention)


def _as_torch_means(
    q: Any,
    k: Any,
    mask: Any,
    causal: bool,
    attn_mask: Any,
    is_causal: bool,
    dropout_p: float,
    enable_gqa: bool,
) -> tuple:
    """What scaled_dot_product_attention's words mean here."""
    is_causal, enable_gqa = flag(is_causal, "is_causal"), flag(enable_gqa, "enable_gqa")
    if dropout_p:
        raise NotImplementedError(f"dropout_p is {dropout_p}; expected 0: there is no dropout")
    if attn_mask is not None and mask is not None:
        raise ValueError("mask and attn_mask are both given; expected one of them")
    # what else is wrong is reported later
    shapes = [() if getattr(x, "is_nested", False) else tuple(getattr(x, "shape", ())) for x in (q, k)]
    if min(map(len, shapes)) > 2 and not enable_gqa and shapes[0][-3] != shapes[1][-3]:
        raise ValueError(
            f"enable_gqa is False, and q has {shapes[0][-3]} heads and k {shapes[1][-3]}; expected as many"
        )
    if min(map(len, shapes)) > 1 and is_causal and shapes[0][-2] != shapes[1][-2]:
        raise ValueError(
            f"is_causal is given beside {shapes[0][-2]} queries and {shapes[1][-2]} keys: torch counts from "
            "the first of both there; causal=True counts from the last"
        )
    return (mask if attn_mask is None else attn_mask), flag(causal, "causal") or is_causal


class Spec:
    """What is asked of attention beside its operands, checked."""

    __slots__ = ("causal", "flags", "key", "scale", "softcap", "tf32", "window")

    def __init__(
        self,
        causal: Any,
        window: Any,
        scale: Any,
        deterministic: bool,
        allow_tf32: bool | None,
        mask: AttentionMask | None = None,
        softcap: float | None = None,
    ):
        self.causal = flag(causal, "causal") or (mask is not None and mask._causal)
        self.window = 0 if window is None else whole(window, "window")
        if mask is not None and mask._window:
            self.window = min(self.window, mask._window) if self.window else mask._window
        self.scale = 0.0 if scale is None else _products.number(scale, "scale")
        if not math.isfinite(self.scale):
            raise ValueError(f"scale is {self.scale}; expected a finite number")
        if scale is not None and self.scale == 0.0:
            self.scale = 1e-300  # 0 is the library's word for the usual one
        self.flags = (
            0
            if deterministic is True or flag(deterministic, "deterministic")
            else _abi.ALLOW_NONDETERMINISTIC
        )
        self.tf32 = None if allow_tf32 is None else flag(allow_tf32, "allow_tf32")
        self.softcap = 0.0 if softcap is None else _products.number(softcap, "softcap")
        if softcap is not None and not 1e-4 <= self.softcap <= 1e6:
            raise ValueError(f"softcap is {self.softcap}; expected None, or 1e-4 to 1e6")
        self.key = ("attention", self.causal, self.window, self.scale, self.flags, self.tf32, self.softcap)

    def flags_for(self, q: Operand) -> int:
        return self.flags | _products.tf32_flag(self.tf32, q)


# ---- masks that keep everything ----

dense_patterns: dict[tuple[int, int], Pattern] = {}
_dense_lock = threading.Lock()


def dense_pattern(queries: int, keys: int) -> Pattern:
    """One stored block of all scores. Its sides are powers of two, for blocks stand in the key under which
    timings are kept, and lengths that differ little, as from token to token, are to share them."""
    found = dense_patterns.get((queries, keys))
    if found is None:
        block = (1 << (queries - 1).bit_length(), 1 << (keys - 1).bit_length())
        found = Pattern(np.array([0, 1], np.int64), np.array([0], np.int64), (queries, keys), block)
        with _dense_lock:
            while len(dense_patterns) >= MOST_DENSE:
                del dense_patterns[next(iter(dense_patterns))]
            found = dense_patterns.setdefault((queries, keys), found)
    return found


# ---- layouts ----


def rows_before_heads(shape: tuple, strides: tuple) -> bool:
    """Whether the layout is (batch, length, heads, size): heads are nearer to each other than rows."""
    return len(shape) > 2 and strides[-3] < strides[-2]


def empty_like(like: Operand, shape: tuple, x: Operand) -> Operand:
    """A new array of this shape, with heads before rows or rows before heads as x has them."""
    if not rows_before_heads(x.shape, x.strides) or like.kind not in ("torch", "numpy", "cupy"):
        return _arrays.empty(like, shape, like.dtype)
    made = _arrays.empty(like, (*shape[:-3], shape[-2], shape[-3], shape[-1]), like.dtype)
    array = made.array.transpose(-3, -2) if made.kind == "torch" else made.array.swapaxes(-3, -2)
    s = made.strides
    return Operand(
        made.kind,
        array,
        made.pointer,
        shape,
        (*s[:-3], s[-2], s[-3], s[-1]),
        made.dtype,
        made.device,
        made.maker,
    )


class Heads:
    """An operand as the library sees it: batch, heads, rows, and how far apart they are."""

    __slots__ = ("batch", "dim", "heads", "operand", "rows", "strides")

    def __init__(self, x: Operand, name: str):
        if len(x.shape) < 2:
            raise ValueError(f"{name} has {len(x.shape)} dimensions; expected (..., heads, length, size)")
        strides = self._lay_out(x)
        if strides is None:
            x = _products.dense_copy(x, name)
            strides = self._lay_out(x)
        self.operand, self.strides = x, strides
        self.rows, self.dim = x.shape[-2:]
        self.heads, self.batch = (x.shape[-3] if len(x.shape) > 2 else 1), math.prod(x.shape[:-3])

    @staticmethod
    def _lay_out(x: Operand) -> tuple | None:
        *lead, heads, rows, dim = x.shape if len(x.shape) > 2 else (1, *x.shape)
        if 0 in x.shape:
            return heads * rows * dim, rows * dim, dim
        *lead_strides, head, row, last = x.strides if len(x.shape) > 2 else (0, *x.strides)
        batch = _products.uniform(tuple(lead), tuple(lead_strides))
        if batch is None or (last != 1 and dim > 1):
            return None
        row = row if rows > 1 else dim
        head = head if heads > 1 else rows * dim
        strides = batch[1] if batch[0] > 1 else heads * rows * dim, head, row
        return strides if any(strides) else None  # all 0 is the library's word for "no gaps"


def _same(x: Operand, y: Operand, x_name: str, y_name: str) -> None:
    if x.dtype != y.dtype:
        raise TypeError(
            f"{y_name} has dtype {_abi.DTYPE_NAMES[y.dtype]} and {x_name} {_abi.DTYPE_NAMES[x.dtype]}; "
            "expected one dtype"
        )
    if x.device != y.device:
        raise ValueError(f"{y_name} is on {y.device} and {x_name} on {x.device}; expected one device")


def check_shapes(
    q: tuple,
    k: tuple,
    v: tuple,
    mask_shape: tuple | None = None,
    mask_heads: int | None = None,
) -> None:
    """ValueError, or NotImplementedError, that names the argument; for real and for traced tensors."""
    for shape, name in ((q, "q"), (k, "k"), (v, "v")):
        if len(shape) < 2:
            raise ValueError(f"{name} has {len(shape)} dimensions; expected (..., heads, length, size)")
        if len(shape) != len(q):
            raise ValueError(f"{name} has {len(shape)} dimensions and q {len(q)}; expected as many")
    if k[:-3] != q[:-3]:
        raise ValueError(f"k has shape {tuple(k)} and q {tuple(q)}; expected the same batch")
    if v[:-1] != k[:-1]:
        raise ValueError(
            f"v has shape {tuple(v)} and k {tuple(k)}; expected the same batch, heads and length"
        )
    if k[-1] != q[-1]:
        raise ValueError(f"k has head size {k[-1]} and q {q[-1]}; expected the same")
    for shape, name in ((q, "q"), (v, "v")):
        if not 1 <= shape[-1] <= MOST_SIZE:
            raise NotImplementedError(f"{name} has head size {shape[-1]}; expected 1 to {MOST_SIZE}")
    if len(q) > 2 and (q[-3] % k[-3] if k[-3] != 0 else q[-3] != 0):
        raise ValueError(f"k has {k[-3]} heads and q {q[-3]}; expected a number that divides those of q")
    if mask_shape is not None and (q[-2] != mask_shape[0] or k[-2] != mask_shape[1]):
        raise ValueError(
            f"mask is {mask_shape[0]}x{mask_shape[1]}; expected {q[-2]}x{k[-2]}, queries by keys"
        )
    if mask_heads is not None and mask_heads != (q[-3] if len(q) > 2 else 1):
        raise ValueError(f"mask has {mask_heads} heads and q {q[-3] if len(q) > 2 else 1}; expected as many")


def _check_operands(q: Operand, k: Operand, v: Operand, mask: AttentionMask | Pattern | None) -> None:
    _same(q, k, "q", "k")
    _same(q, v, "q", "v")
    check_shapes(
        q.shape, k.shape, v.shape, *((mask._shape, mask._heads) if isinstance(mask, AttentionMask) else ())
    )
    if mask is not None and mask.offsets and math.prod(q.shape[:-3]) != 1:
        raise ValueError(
            f"q has a batch of {math.prod(q.shape[:-3])} beside a mask of packed sequences; expected 1"
        )


def check_sinks(sinks: tuple, q: tuple) -> None:
    heads = q[-3] if len(q) > 2 else 1
    if tuple(sinks) != (heads,):
        raise ValueError(f"sinks has shape {tuple(sinks)}; expected ({heads},), a number for each head of q")


def _sinks_of(array: Any, q: Operand) -> Operand:
    """The sinks as the library takes them: float32, without gaps."""
    x = _arrays.describe(array, "sinks")
    check_sinks(x.shape, q.shape)
    if x.device != q.device:
        raise ValueError(f"sinks is on {x.device} and q on {q.device}; expected one device")
    if x.dtype != _abi.F32:
        wide = x.array.float() if x.kind == "torch" else x.array.astype(np.float32)
        x = _arrays.describe(wide, "sinks")
    return x if x.strides == (1,) or x.shape == (1,) else _products.dense_copy(x, "sinks")


# ---- running ----


def _problem(
    op: int, spec: Spec, lse: bool, inputs: tuple, outputs: tuple, heads: tuple, sinks: bool = False
) -> Any:
    """`heads`: strides in the order of sat_attention."""
    q, k, v = inputs[:3]
    x = q.operand
    options = (v.dim, spec.softcap, sinks) if v.dim != q.dim or spec.softcap or sinks else ()
    return problem_of(
        op=op,
        m=q.rows,
        n=k.rows,
        batch=q.batch,
        a_dtype=x.dtype,
        b_dtype=x.dtype,
        c_dtype=x.dtype,
        a_align=min(alignment(i.operand.pointer, x.device) for i in inputs),
        c_align=min(alignment(o.operand.pointer, x.device) for o in outputs),
        alpha=spec.scale,
        flags=spec.flags_for(x),
        attention=(q.heads, k.heads, q.dim, spec.causal, spec.window, lse, *heads, *options),
    )


def problems(
    q_array: Any,
    k_array: Any,
    v_array: Any,
    mask: AttentionMask | None,
    spec: Spec,
    lse: bool,
    gradients: bool,
    sinks: bool = False,
) -> tuple:
    """Pattern, q, and the problems that a call with such operands makes, for races and tuning ahead."""
    q, k, v = (_arrays.describe(x, name) for x, name in ((q_array, "q"), (k_array, "k"), (v_array, "v")))
    _check_operands(q, k, v, mask)
    for x, name in ((q, "q"), (k, "k")):
        if 0 in x.shape:
            raise ValueError(f"{name} has shape {x.shape}; expected something to compute")
    hq, hk, hv = Heads(q, "q"), Heads(k, "k"), Heads(v, "v")
    made = {
        name: Heads(empty_like(q, shape, x), name)
        for name, x, shape in (
            ("out", q, (*q.shape[:-1], v.shape[-1])),
            ("dq", q, q.shape),
            ("dk", k, k.shape),
            ("dv", v, v.shape),
        )
    }
    o, dq, dk, dv = made.values()
    found = [
        _problem(
            _abi.ATTENTION,
            spec,
            lse or gradients,
            (hq, hk, hv),
            (o,),
            (hq.strides, hk.strides, hv.strides, o.strides),
            sinks,
        )
    ]
    if gradients:
        strides = (*(x.strides for x in (hq, hk, hv, o, dq, dk, dv)), o.strides)
        found.append(
            _problem(_abi.ATTENTION_BACKWARD, spec, False, (hq, hk, hv, o, o), (dq, dk, dv), strides, sinks)
        )
    return pattern_for(mask, hq.rows, hk.rows), q, found


def _fill(x: Operand, value: float) -> None:
    if x.kind == "torch":
        x.array.fill_(value)
    else:
        x.array[...] = value


def forward(
    q_array: Any,
    k_array: Any,
    v_array: Any,
    mask: AttentionMask | Pattern | None,
    spec: Spec,
    lse: bool,
    keep: bool = False,
    sinks_array: Any = None,
) -> tuple:
    """Result, LSE or None, and the plan if it is to be kept; no gradients."""
    q, k, v = (_arrays.describe(x, name) for x, name in ((q_array, "q"), (k_array, "k"), (v_array, "v")))
    _check_operands(q, k, v, mask)
    sinks = None if sinks_array is None else _sinks_of(sinks_array, q)
    out = empty_like(q, (*q.shape[:-1], v.shape[-1]), q)
    sums = _arrays.empty(q, q.shape[:-1], _abi.F32) if lse else None
    plan = None
    if 0 in q.shape or 0 in k.shape:
        _fill(out, 0.0)
        if sums is not None:
            _fill(sums, -math.inf if sinks is None else sinks.array[:, None])
    else:
        hq, hk, hv, ho = Heads(q, "q"), Heads(k, "k"), Heads(v, "v"), Heads(out, "out")
        strides = (hq.strides, hk.strides, hv.strides, ho.strides)
        problem = _problem(_abi.ATTENTION, spec, lse, (hq, hk, hv), (ho,), strides, sinks is not None)
        pattern = pattern_for(mask, hq.rows, hk.rows)
        inputs = (hq.operand.pointer, hk.operand.pointer, hv.operand.pointer)
        if sinks is not None:
            inputs = (*inputs, sinks.pointer)
        outputs = (out.pointer,) if sums is None else (out.pointer, sums.pointer)
        # a copy's address is nobody's
        keep = keep and all(h.operand.array is x for h, x in ((hq, q_array), (hk, k_array), (hv, v_array)))
        arrays = tuple(x.operand.array for x in (hq, hk, hv))
        own, plan = _run(pattern, problem, inputs, outputs, q, arrays, keep)
        if own is not None:
            return *(own if lse else (own, None)), plan
    return _arrays.finish(out, q), None if sums is None else _arrays.finish(sums, q), plan


def _run(
    pattern: Pattern, problem: Any, inputs: tuple, outputs: tuple, q: Operand, arrays: tuple, keep: bool
) -> tuple:
    """Runs a plan. Where that would call torch's own and copy its result, gives that result itself, else
    None; and what is kept, for a runner."""
    if q.kind != "torch":
        return None, _products.run(pattern, problem, inputs, outputs, q, ATTENTION_NAMES, keep)
    stream, threads, capturing = _arrays.stream_of(q), _arrays.threads_for(q), _arrays.is_capturing(q)
    key, plan = pattern.take(q.device, problem, stream, threads, capturing)
    try:
        if plan.direct is ...:
            from ._torch import own_attention

            plan.direct = own_attention.direct(plan, problem.struct, pattern.view(), q.device)
        if plan.direct is None:
            own = None
            launch(plan, inputs, outputs, stream, threads, ATTENTION_NAMES)
        else:
            with torch_module().no_grad():
                own = plan.direct(*arrays)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep or capturing:
            pattern.give_back(key, plan)
    return own, None if not keep or capturing else Kept(pattern, key, plan, stream, threads)


def backward(
    q_array: Any,
    k_array: Any,
    v_array: Any,
    out_array: Any,
    lse_array: Any,
    grad_array: Any,
    mask: AttentionMask | Pattern | None,
    spec: Spec,
    keep: bool = False,
    sinks_array: Any = None,
) -> tuple:
    """Gradients of q, k and v, and of sinks where there are any, and the plan if it is to be kept."""
    arrays = (
        (q_array, "q"),
        (k_array, "k"),
        (v_array, "v"),
        (out_array, "out"),
        (grad_array, "grad"),
        (lse_array, "lse"),
    )
    q, k, v, o, g, sums = (_arrays.describe(x, name) for x, name in arrays)
    dq, dk, dv = empty_like(q, q.shape, q), empty_like(q, k.shape, k), empty_like(q, v.shape, v)
    sinks = None if sinks_array is None else _sinks_of(sinks_array, q)
    found = (dq, dk, dv) if sinks is None else (dq, dk, dv, _arrays.empty(q, sinks.shape, _abi.F32))
    plan = None
    if 0 in q.shape or 0 in k.shape:
        for x in found:
            _fill(x, 0.0)
    else:
        inputs = tuple(Heads(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"), (o, "out"), (g, "grad")))
        outputs = tuple(Heads(x, name) for x, name in ((dq, "dq"), (dk, "dk"), (dv, "dv")))
        if sums.dtype != _abi.F32:
            raise TypeError(f"lse has dtype {lse_array.dtype}; expected float32")
        if sums.strides != _arrays._dense_strides(sums.shape):
            sums = _products.dense_copy(sums, "lse")
        strides = (*(x.strides for x in inputs[:4]), *(x.strides for x in outputs), inputs[4].strides)
        problem = _problem(_abi.ATTENTION_BACKWARD, spec, False, inputs, outputs, strides, sinks is not None)
        pattern = pattern_for(mask, inputs[0].rows, inputs[1].rows)
        *read, grad = (x.operand.pointer for x in inputs)
        written = tuple(x.operand.pointer for x in outputs)
        read += (sums.pointer, grad) if sinks is None else (sums.pointer, grad, sinks.pointer)
        written = written if sinks is None else (*written, found[3].pointer)
        used = (*(x.operand for x in inputs), sums)
        keep = keep and all(x.array is given for x, (given, _) in zip(used, arrays))
        plan = _products.run(pattern, problem, tuple(read), written, q, ATTENTION_NAMES, keep)
    return tuple(x.array for x in found), plan


def pattern_for(mask: AttentionMask | Pattern | None, queries: int, keys: int) -> Pattern:
    return (
        dense_pattern(queries, keys) if mask is None else mask if isinstance(mask, Pattern) else mask._pattern
    )
