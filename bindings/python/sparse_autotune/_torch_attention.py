"""Attention in PyTorch: operators, gradients, autocast and tracing, as in _torch, which says what each way is
for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import _attention, _mask, _torch_modes, _torch_own, _torch_patterns
from . import _torch as interop
from ._attention import Spec
from ._mask import AttentionMask, flag, whole
from ._matrix import make_pattern
from ._pattern import Pattern
from ._tangents import ReverseOnly, forward_ad, refuse_tangents

_C = torch._C
_ONCE = "q, k and v: attention has first gradients only"

# ---- masks as tensors: row_ptr, col_idx and the offsets in one ----

_masks = _torch_patterns.Known()


def _key(index: Tensor, shape: tuple) -> tuple:
    return index.untyped_storage()._cdata, index.storage_offset(), index.shape[0], shape


def pattern_of(index: Tensor, shape: tuple) -> Pattern:
    """The pattern of a mask's tensor; (rows, columns, block rows, block columns, stored blocks, sequences) is
    its shape."""
    found = _masks.get(_key(index, shape), (index,))
    if found is not None:
        return found
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("mask is not known yet, and a CUDA graph is being captured: run this once before")
    if len(shape) != 6 or shape[2] < 1 or shape[3] < 1:
        raise ValueError(
            f"mask_shape is {shape}; expected rows, columns, block rows, block columns, stored blocks, "
            "sequences"
        )
    rows, cols, br, bc, stored, sequences = shape
    words = index.detach().cpu().numpy().astype(np.int64)
    sizes = [-(-rows // br) + 1, stored, *((sequences + 1, sequences + 1) if sequences else ())]
    if words.ndim != 1 or len(words) != sum(sizes):
        raise ValueError(f"mask has shape {tuple(words.shape)}; expected ({sum(sizes)},)")
    row_ptr, col_idx, *offsets = (np.array(x) for x in np.split(words, np.cumsum(sizes)[:-1]))
    pattern = make_pattern(row_ptr, col_idx, (rows, cols), (br, bc))
    if offsets:
        pattern = Pattern(row_ptr, col_idx, (rows, cols), (br, bc), "cpu", tuple(offsets))
    _masks.add(_key(index, shape), (index,), pattern, _torch_patterns.Seen((index,), (words,)))
    return pattern


def _copy_index(pattern: Pattern, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(
            np.concatenate([pattern.row_ptr, pattern.col_idx, *pattern.offsets]).astype(np.int64),
            device=device,
        )


def _where(device: torch.device) -> int:
    return device.index if device.type == "cuda" else -1


def index_of(mask: AttentionMask, device: torch.device) -> Tensor:
    """A mask's tensor on a device, made once. It stays; a GPU's is made aside."""
    key = _where(device)
    if key not in mask._tensors:
        made = _torch_modes.lasting(_copy_index, mask._pattern, device, aside=key >= 0)
        made._dynamo_static_input_type = (
            "unguarded"  # its address never changes: CUDA graphs need not copy it
        )
        _masks.add(_key(made, mask._index_shape), (made,), mask._pattern, _torch_patterns.Seen((made,), None))
        mask._tensors[key] = made
    return mask._tensors[key]


def adopt(mask: AttentionMask) -> None:
    """Makes the tensors that torch.compile will look for."""
    index_of(mask, torch.device("cpu"))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        index_of(mask, torch.device("cuda", torch.cuda.current_device()))


# ---- the quick way ----


def _plain(q: Any, k: Any, v: Any, mask: AttentionMask | None, spec: Spec) -> Tensor | None:
    """Attention of plain tensors by a runner that knows them; None where there is none."""
    if not (isinstance(k, Tensor) and isinstance(v, Tensor) and q.dim() >= 2 and k.dim() >= 2):
        return None
    m, n = q.shape[-2], k.shape[-2]
    if (mask is not None and mask._shape != (m, n)) or forward_ad._current_level >= 0:
        return None
    pattern = mask._pattern if mask is not None else _attention._dense.get((m, n))
    quick = None if pattern is None or interop._fast is None else pattern.caches.get(("attention", *spec.key))
    return None if quick is None else quick.attend(q, k, v)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Pattern | None,
    spec: Spec,
    lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Of plain tensors, without gradients; gives the runner its plan."""
    if forward_ad._current_level >= 0:
        refuse_tangents(q, k, v)
    if isinstance(mask, AttentionMask) and q.is_cuda:
        index_of(mask, q.device)  # for torch.compile, later
    out, sums, made = _attention.forward(q, k, v, mask, spec, lse, keep=not lse and interop._fast is not None)
    if made is not None:
        pattern = _attention.pattern_for(mask, q.shape[-2], k.shape[-2])
        interop.install(
            interop.runner(pattern, ("attention", *spec.key), spec.scale or 1.0), (q, k, v), out, made
        )
    return out, sums


# ---- gradients in plain eager code ----


class _Attention(ReverseOnly):
    @staticmethod
    def forward(ctx, q, k, v, mask, spec):
        out, lse = forward(q, k, v, mask, spec, True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.facts = (mask, spec)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, grad, _):
        (mask, spec), tensors = ctx.facts, (grad, *ctx.saved_tensors)
        if interop._plain(*tensors):
            return *_Gradients.of_plain(*tensors, mask, spec), None, None
        return (
            *torch.ops.sparse_autotune.attention_backward(*tensors, *_words(grad.device, mask, *_told(spec))),
            None,
            None,
        )


class _Gradients(ReverseOnly):
    @staticmethod
    def forward(ctx, grad, q, k, v, out, lse, mask, spec):
        return _attention.backward(q, k, v, out, lse, grad, mask, spec)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(_ONCE)


# ---- operators ----

_OPTIONS = (
    "Tensor? mask=None, int[] mask_shape=[], bool causal=False, int? window=None, float? scale=None, "
    "bool deterministic=True, bool? allow_tf32=None"
)
_library = interop._library
_library.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool lse=False) -> (Tensor, Tensor)",
    tags=interop._tags,
)
_library.define(
    f"attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}) -> "
    "(Tensor, Tensor, Tensor)",
    tags=interop._tags,
)


def _known(mask: Tensor | None, mask_shape: Any) -> Pattern | None:
    return None if mask is None else pattern_of(mask, tuple(mask_shape))


def _attention_impl(
    q,
    k,
    v,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
    lse=False,
):
    with torch.no_grad():
        out, sums = forward(
            q, k, v, _known(mask, mask_shape), Spec(causal, window, scale, deterministic, allow_tf32), lse
        )
    # torch's own lies as it likes, and what is traced must be what comes
    if out.stride() != (wanted := _like(q)).stride():
        out = wanted.copy_(out)
    return out, q.new_empty((0,), dtype=torch.float32) if sums is None else sums


def _backward_impl(
    grad,
    q,
    k,
    v,
    out,
    lse,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
):
    with torch.no_grad():
        return _attention.backward(
            q,
            k,
            v,
            out,
            lse,
            grad,
            _known(mask, mask_shape),
            Spec(causal, window, scale, deterministic, allow_tf32),
        )


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _attention_impl, _device)
    _library.impl("attention_backward", _backward_impl, _device)


def _like(x: Tensor) -> Tensor:
    if not _attention.lies_by_rows(x.shape, x.stride()):
        return x.new_empty(x.shape)
    return x.new_empty((*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1])).transpose(-3, -2)


@torch.library.register_fake("sparse_autotune::attention", lib=_library)
def _attention_fake(
    q,
    k,
    v,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
    lse=False,
):
    torch._check(
        q.dtype == k.dtype and q.dtype == v.dtype,
        lambda: f"q, k and v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; expected one",
    )
    _attention.check_shapes(q.shape, k.shape, v.shape)
    return _like(q), q.new_empty(q.shape[:-1] if lse else (0,), dtype=torch.float32)


@torch.library.register_fake("sparse_autotune::attention_backward", lib=_library)
def _backward_fake(
    grad,
    q,
    k,
    v,
    out,
    lse,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    allow_tf32=None,
):
    return _like(q), _like(k), _like(v)


def _setup(ctx, inputs, output):
    q, k, v, mask, *facts, lse = inputs
    out, sums = output
    ctx.mark_non_differentiable(sums)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, sums)  # as _Attention does
    ctx.index, ctx.facts, ctx.lse = _torch_patterns.Unchanged(mask), (list(facts[0]), *facts[1:]), lse


def _grads(ctx, grad, _):
    if grad is None:
        return (None,) * 11
    q, k, v, out, sums = ctx.saved_tensors
    words = *ctx.index.get(), *ctx.facts
    if not ctx.lse:
        out, sums = torch.ops.sparse_autotune.attention(q, k, v, *words, True)
    return *torch.ops.sparse_autotune.attention_backward(grad, q, k, v, out, sums, *words), *(None,) * 8


def _no_setup(ctx, inputs, output):
    pass


def _no_grads(ctx, *grads):
    raise NotImplementedError(_ONCE)


torch.library.register_autograd("sparse_autotune::attention", _grads, setup_context=_setup, lib=_library)
torch.library.register_autograd(
    "sparse_autotune::attention_backward", _no_grads, setup_context=_no_setup, lib=_library
)


def _vmap(name: str, count: int) -> Any:
    """A batch of batches is a larger batch; where the mask is batched too, or there are no heads or
    sequences, one by one."""

    def rule(info, in_dims, *inputs):
        operator, size = getattr(torch.ops.sparse_autotune, name), info.batch_size
        # by torch: arguments that are what they are by default
        left_out = [x.default_value for x in operator.default._schema.arguments[len(inputs) :]]
        inputs, in_dims = (*inputs, *left_out), (*in_dims, *(None for _ in left_out))
        tensors, rest, dims = inputs[: count + 1], inputs[count + 1 :], in_dims[: count + 1]
        q, at = (tensors[0], dims[0]) if count == 3 else (tensors[1], dims[1])
        packed = inputs[count] is not None and rest[0][5] > 0
        if dims[count] is None and not packed and q.dim() - (at is not None) >= 3:
            batched = [
                x.unsqueeze(0).expand(size, *x.shape) if d is None else x.movedim(d, 0)
                for x, d in zip(tensors[:count], dims)
            ]
            found = operator(*batched, inputs[count], *rest)
        else:
            items = [
                operator(*(x if d is None else x.select(d, i) for x, d in zip(tensors, dims)), *rest)
                for i in range(size)
            ]
            found = tuple(torch.stack(x) for x in zip(*items))
        if count == 3 and not rest[-1]:
            return (found[0], found[0].new_empty((0,), dtype=torch.float32)), (0, None)
        return found, (0,) * len(found)

    return rule


torch.library.register_vmap("sparse_autotune::attention", _vmap("attention", 3), lib=_library)
torch.library.register_vmap(
    "sparse_autotune::attention_backward", _vmap("attention_backward", 6), lib=_library
)


def _register_autocast(device: str, key: str) -> None:
    excluded = _C.DispatchKeySet(getattr(_C.DispatchKey, key))

    def autocast(q, k, v, *rest, **words):
        with _C._ExcludeDispatchKeyGuard(excluded):
            return torch.ops.sparse_autotune.attention(*interop._autocast(device, q, k, v), *rest, **words)

    _library.impl("attention", autocast, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")


# ---- what attention calls ----


def _call(q, k, v, mask, causal, window, scale, return_lse, deterministic, allow_tf32, spec=None):
    if spec is None:  # torch.compile traces this: no Python that it cannot follow
        causal, deterministic = flag(causal, "causal"), flag(deterministic, "deterministic")
        allow_tf32 = None if allow_tf32 is None else flag(allow_tf32, "allow_tf32")
        if window is not None and type(window) is not int:
            window = whole(window, "window")  # how large it is, is looked at when the operator runs
        return _through_operator(q, k, v, mask, return_lse, causal, window, scale, deterministic, allow_tf32)
    for x, name in ((k, "k"), (v, "v")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, as q is")
    if not interop._plain(q, k, v):
        return _through_operator(q, k, v, mask, return_lse, *_told(spec))
    if interop.autocasts(q):
        q, k, v = interop._autocast(q.device.type, q, k, v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.of_plain(q, k, v, mask, spec)
    else:
        out, lse = forward(q, k, v, mask, spec, return_lse)
    return (out, lse) if return_lse else out


def _told(spec: Spec) -> tuple:
    """What a spec says, in the words of the operators."""
    return spec.causal, spec.window or None, spec.scale or None, not spec.flags, spec.tf32


def _words(device, mask, causal, window, scale, deterministic, allow_tf32):
    """What the operators take beside tensors."""
    index, shape = None, ()
    if mask is not None:
        at = _where(device)
        # the CPU's serves too, but for CUDA graphs
        index = mask._tensors[at] if at in mask._tensors else mask._tensors[-1]
        if _torch_modes.makes_fakes(index):
            index = _copy_index(mask._pattern, device)
        shape, causal = mask._index_shape, causal or mask._causal
        if mask._window:
            window = mask._window if window is None else min(window, mask._window)
    return index, shape, causal, window, scale, deterministic, allow_tf32


def _through_operator(q, k, v, mask, return_lse, *facts):
    if mask is not None:
        _attention.check_shapes(q.shape, k.shape, v.shape, mask._shape, mask._heads)
    needs = return_lse or (
        torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    )
    out, lse = torch.ops.sparse_autotune.attention(q, k, v, *_words(q.device, mask, *facts), needs)
    return (out, lse) if return_lse else out


_attention._torch_attention = _call
_attention._torch_plain = _plain
_attention._torch_forward = forward
_torch_own.register_torch()
for _early in list(_mask.early):
    adopt(_early)
