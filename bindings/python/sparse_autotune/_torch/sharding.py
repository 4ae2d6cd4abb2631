"""How torch's DTensors pass through the operators: rules for their placements.

A DTensor takes only DTensors beside it, so `alike` makes some of indices; it also registers the rules, when
the first DTensor comes. They are torch's `register_sharding`, which is public and called experimental. Where
a torch lacks it, torch says that an operator has no rule.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor


def alike(like: Any, *tensors: Tensor | None) -> tuple:
    """Tensors that are the same on every rank, as DTensors where `like` is one."""
    module = None if torch.compiler.is_compiling() else sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(like, module.DTensor):
        return tensors
    _register()
    mesh = like.device_mesh
    everywhere = [module.Replicate()] * mesh.ndim
    return tuple(
        t
        if t is None or isinstance(t, module.DTensor)
        else module.DTensor.from_local(t, mesh, everywhere, run_check=False)
        for t in tensors
    )


@functools.cache
def _register() -> None:
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:
        return
    for name, rule in _RULES.items():
        register_sharding(getattr(torch.ops.sparse_autotune, name).default)(rule)


def _placements() -> Any:
    from torch.distributed import tensor

    return tensor.Replicate(), tensor.Shard, tensor.Partial()


def _rule(outputs: list, tensors: list, *arguments: Any) -> tuple[list, list]:
    """One way: `tensors` for what is given of them; what is no tensor has no placement."""
    given = [place for place, there in zip(tensors, arguments) if there is not None]
    return outputs, given


def _matmul(
    values, row_ptr, col_idx, b, bias, shape, transpose=False, left=False, alpha=1.0, activation="none", *_
):
    whole, shard, partial = _placements()
    words = values, row_ptr, col_idx, b, bias

    def way(out, at):
        return _rule([out], [whole, whole, whole, at, whole], *words)

    count = len(b.shape)
    free = range(count - 1) if left else [*range(count - 2), *([count - 1] if count > 1 else [])]
    ways = [way(whole, whole), *(way(shard(dim), shard(dim)) for dim in free)]
    if bias is None and activation == "none":
        ways.append(way(partial, partial))
    return ways


def _sampled(x, y, row_ptr, col_idx, *_):
    whole, shard, partial = _placements()
    return [
        ([whole], [whole, whole, whole, whole]),
        ([partial], [shard(1), shard(0), whole, whole]),  # a sum over what is sharded
    ]


def _grouped_matmul(x, w, offsets, bias, activation="none", alpha=1.0):
    whole, shard, partial = _placements()
    words = x, w, offsets, bias
    ways = [
        _rule([whole], [whole, whole, whole, whole], *words),
        _rule([shard(1)], [whole, shard(2), whole, shard(1)], *words),
    ]
    if bias is None and activation == "none":
        ways.append(_rule([partial], [shard(1), shard(1), whole], *words))
        ways.append(_rule([partial], [partial, whole, whole], *words))
    return ways


def _grouped_weights(x, z, offsets, alpha=1.0):
    whole, shard, _ = _placements()
    return [
        ([whole], [whole, whole, whole]),
        ([shard(1)], [shard(1), whole, whole]),
        ([shard(2)], [whole, shard(1), whole]),
    ]


def _independent(q: Any, k: Any, mask: Any, mask_shape: Any) -> list[int]:
    """Dimensions of which each item is computed alone: batches, and heads where all have one mask. Queries
    and keys must be cut alike, also where several heads of queries share one of keys."""
    heads, found = len(q.shape) - 3, []
    for dim in range(len(q.shape) - 2):
        ranks = q.mesh.size()
        alike = q.shape[dim] == k.shape[dim] or (q.shape[dim] % ranks == 0 and k.shape[dim] % ranks == 0)
        packed = mask is not None and mask_shape[5] > 0
        own = mask is not None and mask_shape[0] != q.shape[-2]
        if alike and not (dim == heads and own) and not (dim < heads and packed):
            found.append(dim)
    return found


def _attention(
    q,
    k,
    v,
    mask=None,
    mask_shape=(),
    causal=False,
    window=None,
    scale=None,
    deterministic=True,
    tf32=None,
    softcap=None,
    lse=False,
):
    whole, shard, _ = _placements()
    places = [whole, *(shard(dim) for dim in _independent(q, k, mask, mask_shape))]
    return [_rule([at, at if lse else whole], [at, at, at, whole], q, k, v, mask) for at in places]


def _attention_backward(grad, q, k, v, out, lse, mask=None, mask_shape=(), *_):
    whole, shard, _ = _placements()
    places = [whole, *(shard(dim) for dim in _independent(q, k, mask, mask_shape))]
    words = grad, q, k, v, out, lse, mask
    return [_rule([at, at, at], [at, at, at, at, at, at, whole], *words) for at in places]


_RULES = {
    "matmul": _matmul,
    "sampled": _sampled,
    "dynamic_matmul": _matmul,
    "dynamic_sampled": _sampled,
    "grouped_matmul": _grouped_matmul,
    "grouped_weights": _grouped_weights,
    "attention": _attention,
    "attention_backward": _attention_backward,
}
