"""torch's own attention as variants: SDPA's backends and FlexAttention race beside the library's kernels.

Where one of them wins, its result is returned as it is, without a copy.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import _abi, _attention_variants, _mask
from .._attention_variants import AttentionCall
from . import private


def _tensor(x: Any) -> Any:
    """A torch tensor over the same memory."""
    if isinstance(x, torch.Tensor):
        return x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # read-only arrays are only read
        t = torch.from_numpy(x)
    return t.view(torch.bfloat16) if t.dtype == torch.uint16 else t


def _tensors(call: AttentionCall, *names: str) -> list:
    return [_tensor(getattr(call, name)) for name in names]


_own: dict[str, tuple] = {}  # torch's own by name: what computes, and what prepares


def _written(compute: Callable[[AttentionCall], tuple]) -> Callable[[AttentionCall], None]:
    """A variant that puts what compute returns, result and LSE, into its place."""

    def function(call: AttentionCall) -> None:
        out, lse = compute(call)
        _tensor(call.out).copy_(out)
        if call.lse is not None:
            _tensor(call.lse).copy_(lse)

    return function


def direct(plan: Any, problem: _abi.Problem, view: _abi.PatternView, device: str) -> Callable | None:
    """For a plan whose variant is torch's own: a function of q, k and v that calls it without the copy, and
    gives the result, or result and LSE where the problem wants that; else None."""
    name = plan.info().variant.decode()
    if name not in _own:
        return None
    compute, prepare = _own[name]
    call = _attention_variants.call_of(problem, view, None)
    call.device, call.scale = device, call.scale or call.size**-0.5
    call.row_ptr, call.col_idx = call.row_ptr.copy(), call.col_idx.copy()
    call.state = _attention_variants.prepared(name, prepare, call)

    def function(q: Any, k: Any, v: Any) -> Any:
        mine = call.twin()
        mine.q, mine.k, mine.v = (
            x if x.dim() == 4 else x.reshape(-1, *((1,) * (3 - x.dim())), *x.shape[-3:]) for x in (q, k, v)
        )
        out, lse = compute(mine)
        out = out if q.dim() == 4 else out.reshape(q.shape)
        return (out, lse.reshape(q.shape[:-1]).float().contiguous()) if call.wants_lse else out

    return function


def _square_causal(call: AttentionCall) -> bool:
    """torch counts causal from the first query and key, which is the same where there are as many."""
    return not call.causal or call.shape[0] == call.shape[1]


def _all_kept(call: AttentionCall) -> bool:
    return call.full and not call.offsets


def _seconds(call: AttentionCall, rate: float, pairs: float) -> float:
    work = 4 if call.op == "attention" else 10
    return 5e-6 + work * call.size * call.heads * call.batch * pairs / rate


def _pairs(call: AttentionCall) -> float:
    """Pairs that a kernel without blocks computes."""
    m, n = call.shape
    if call.window:
        return m * min(n, call.window if call.causal else 2 * call.window)
    return m * n * (0.5 if call.causal else 1.0)


_MOST_MASK = 1 << 26  # elements of a mask that is given to torch pair by pair


def _scale_fits(call: AttentionCall) -> bool:
    """torch multiplies what is masked, minus infinity, by the scale. 0 stands for 1/sqrt(size)."""
    return call.scale == 0 or np.float32(call.scale) > 0


def _cpu_supports(call: AttentionCall) -> bool:
    if (
        call.heads != call.kv_heads
        or not np.diff(call.row_ptr).all()
        or (call.causal and call.shape[0] > call.shape[1])
    ):
        return False  # the latter two: queries that see nothing
    plain = _all_kept(call) and not call.window and _square_causal(call)
    return plain or (call.op == "attention" and call.masks * call.shape[0] * call.shape[1] <= _MOST_MASK)


def _cpu_prepare(call: AttentionCall) -> Any:
    if _all_kept(call) and not call.window and _square_causal(call):
        return None
    keep = call.dense()
    if not keep.any(-1).all():
        raise ValueError("a query sees nothing, which torch makes NaN of")
    bias = torch.zeros(keep.shape, dtype=getattr(torch, call.dtype))
    return bias.masked_fill_(torch.from_numpy(~keep), float("-inf"))[None]


def _cpu(call: AttentionCall) -> tuple:
    q, k, v = _tensors(call, "q", "k", "v")
    causal = call.causal and call.state is None
    out, lse = private.flash_cpu(q, k, v, 0.0, causal, attn_mask=call.state, scale=call.scale)
    return out, lse


def _cpu_backward(call: AttentionCall) -> None:
    g, q, k, v, out, lse = _tensors(call, "grad", "q", "k", "v", "out", "lse")
    lse = lse.double() if q.dtype == torch.float64 else lse  # torch sums up in double there
    backward = private.flash_cpu_backward
    for x, found in zip(
        _tensors(call, "dq", "dk", "dv"), backward(g, q, k, v, out, lse, 0.0, call.causal, scale=call.scale)
    ):
        x.copy_(found)


def _flash_words(call: AttentionCall) -> dict:
    words = {"scale": call.scale}
    if call.window:
        words["window_size_left"], words["window_size_right"] = (
            call.window - 1,
            0 if call.causal else call.window - 1,
        )
    return words


def _flash_prepare(call: AttentionCall) -> Any:
    if not call.offsets:
        return None, None, call.shape[0], call.shape[1]
    return (
        *(torch.tensor(x.astype(np.int32), device=call.device) for x in call.offsets),
        *(int(np.diff(x).max()) for x in call.offsets),
    )


def _flash_layout(call: AttentionCall, *names: str) -> list:
    """(batch, length, heads, size), or (length, heads, size) of packed sequences."""
    return [x[0] if call.offsets else x for x in (t.transpose(1, 2) for t in _tensors(call, *names))]


def _flash(call: AttentionCall) -> tuple:
    q, k, v = _flash_layout(call, "q", "k", "v")
    found = private.flash(q, k, v, *call.state, 0.0, call.causal, False, **_flash_words(call))
    out, lse = found[0], found[1]
    return (out[None] if call.offsets else out).transpose(1, 2), lse[None] if call.offsets else lse


def _flash_backward(call: AttentionCall) -> None:
    g, q, k, v, out = _flash_layout(call, "grad", "q", "k", "v", "out")
    seed = torch.zeros(2, dtype=torch.uint64, device=call.device)
    found = private.flash_backward(
        g,
        q,
        k,
        v,
        out,
        call.lse[0] if call.offsets else call.lse,
        *call.state,
        0.0,
        call.causal,
        seed,
        seed.new_empty(()),
        **_flash_words(call),
    )
    for x, y in zip((call.dq, call.dk, call.dv), found):
        x.copy_((y[None] if call.offsets else y).transpose(1, 2))


def _flash_supports(call: AttentionCall) -> bool:
    return call.full and call.size <= 256


def _cudnn(call: AttentionCall) -> tuple:
    found = private.cudnn(
        call.q, call.k, call.v, None, call.wants_lse, 0.0, call.causal, False, scale=call.scale
    )
    return found[0], found[1].reshape(call.q.shape[:3]) if call.wants_lse else None


def _efficient(call: AttentionCall) -> tuple:
    found = private.efficient(
        call.q, call.k, call.v, None, call.wants_lse, 0.0, call.causal, scale=call.scale
    )
    return found[0], found[1][..., : call.shape[0]] if call.wants_lse else None


def _plain_supports(call: AttentionCall) -> bool:
    return (
        _all_kept(call)
        and not call.window
        and _square_causal(call)
        and call.heads == call.kv_heads
        and call.size <= 128
    )


def _flex_supports(call: AttentionCall) -> bool:
    return (
        not (call.full and not call.window)
        and call.size in (64, 128)
        and min(call.shape) >= 128
        and not call.offsets
        and not any(b % 128 for b in call.block)
    )


def _flex_prepare(call: AttentionCall) -> Any:
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    (m, n), shift = call.shape, call.shape[1] - call.shape[0]
    causal, window = call.causal, call.window

    def mod(b, h, i, j):
        at = i + shift
        keep = j < n
        if causal:
            keep = keep & (j <= at)
        if window:
            keep = keep & (j - at < window) & (at - j < window)
        return keep

    stored = _mask.stored_blocks(call.row_ptr, call.col_idx, -(-n // call.block[1])).reshape(
        1, call.masks, -1, -(-n // call.block[1])
    )
    blocks = torch.from_numpy(stored).to(call.device)
    count = blocks.sum(-1, dtype=torch.int32)
    index = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    plain = not causal and not window and not m % call.block[0] and not n % call.block[1]
    parts = (torch.zeros_like(count), index, count, index) if plain else (count, index)
    mask = BlockMask.from_kv_blocks(*parts, BLOCK_SIZE=call.block, mask_mod=mod, seq_lengths=call.shape)
    return mask, _compiled_flex(flex_attention)


@functools.cache
def _compiled_flex(flex_attention: Any) -> Any:
    return torch.compile(flex_attention, dynamic=False)


def _flex(call: AttentionCall) -> tuple:
    mask, flex = call.state
    words = {"block_mask": mask, "scale": call.scale, "enable_gqa": call.heads != call.kv_heads}
    if call.wants_lse:
        return flex(call.q, call.k, call.v, return_lse=True, **words)
    return flex(call.q, call.k, call.v, **words), None


def register_torch() -> None:
    """Puts torch's own attention into every race from now on, as far as this torch has its operators."""
    half = {_abi.F16, _abi.BF16}
    every = {_abi.F32, _abi.F64, *half}
    version = str(torch.__version__)[:40]

    def add(operator, function, name, dtypes, fits, estimate, prepare=None, *, flags=0, about):
        def supports(call):
            return _scale_fits(call) and fits(call)

        if operator is None:
            return
        op = "attention_backward" if "_backward_" in name else "attention"
        if op == "attention":
            _own[name] = (function, prepare)
            function = _written(function)
        _attention_variants.register(
            function,
            name=name,
            op=op,
            backend=_abi.CPU if name.startswith("cpu_") else _abi.CUDA,
            dtypes=dtypes,
            supports=supports,
            estimate=estimate,
            prepare=prepare,
            revision=version,
            flags=flags | _abi.V_LIBRARY,
            about=about,
        )

    def at(rate):
        return lambda call: _seconds(call, rate, _pairs(call))

    add(
        private.flash_cpu,
        _cpu,
        "cpu_attention_any_any_torch_sdpa",
        every,
        _cpu_supports,
        at(5e10),
        _cpu_prepare,
        about="torch's attention",
    )
    add(
        private.flash_cpu_backward,
        _cpu_backward,
        "cpu_attention_backward_any_any_torch_sdpa",
        every,
        _cpu_supports,
        at(5e10),
        about="torch's attention",
    )
    if not torch.backends.cuda.is_built():
        return
    add(
        private.flash,
        _flash,
        "cuda_attention_any_any_torch_flash",
        half,
        _flash_supports,
        at(3e14),
        _flash_prepare,
        about="torch's FlashAttention",
    )
    add(
        private.flash_backward,
        _flash_backward,
        "cuda_attention_backward_any_any_torch_flash",
        half,
        _flash_supports,
        at(2.5e14),
        _flash_prepare,
        flags=_abi.V_NONDETERMINISTIC,
        about="torch's FlashAttention; adds in any order",
    )
    add(
        private.cudnn,
        _cudnn,
        "cuda_attention_any_any_torch_cudnn",
        half,
        _plain_supports,
        at(5e14),
        about="cuDNN's attention, by torch",
    )
    add(
        private.efficient,
        _efficient,
        "cuda_attention_any_any_torch_efficient",
        {_abi.F32, *half},
        _plain_supports,
        at(1.5e14),
        about="torch's memory-efficient attention",
    )

    def flex_seconds(call):
        stored = len(call.col_idx) * call.block[0] * call.block[1] / call.masks
        return _seconds(call, 3e14, min(stored, _pairs(call)))

    add(
        torch.compile,
        _flex,
        "cuda_attention_any_any_torch_flex",
        half,
        _flex_supports,
        flex_seconds,
        _flex_prepare,
        about="FlexAttention, compiled",
    )
