"""Experts of an `MoE` over ranks: every rank has some of the experts, and tokens of its own. Rows travel to
their experts and back by all-to-all. No token is dropped, however uneven the experts are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ._moe import MoE
from ._parallel import _distribute

try:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import ParallelStyle
except ImportError:
    raise RuntimeError("experts over ranks need torch 2.6 or newer, with torch.distributed") from None


class _Exchange(torch.autograd.Function):
    """Rows to other ranks: so many to each, and so many from each. The gradient goes the other way."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.facts = sent, received, group
        found = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    def backward(ctx, grad):
        sent, received, group = ctx.facts
        return _Exchange.apply(grad, received, sent, group), None, None, None


class _Divided(torch.autograd.Function):
    """A tensor as it is, whose gradient is divided, and contiguous. One with other strides torch would copy,
    and for uneven shards gather first: on those ranks alone that have experts, which would wait for ever."""

    @staticmethod
    def forward(ctx, t, by):
        ctx.by = by
        return t.view_as(t)

    @staticmethod
    def backward(ctx, grad):
        return (grad / ctx.by).contiguous(), None


class _Spread:
    """What `MoE.forward` asks for where its experts are on several ranks."""

    def __init__(self, experts: int, mesh: Any, mean: bool):
        self.mesh, self.by = mesh, mesh.size() if mean else 1
        self.each = -(-experts // mesh.size())  # of DTensor's shards; the last ranks may have fewer
        self.experts = experts

    def __deepcopy__(self, memo: dict) -> _Spread:
        return self

    def _local(self, weights: Any) -> Tensor:
        local = weights.to_local() if isinstance(weights, DTensor) else weights
        return _Divided.apply(local, self.by)

    def __call__(self, layer: MoE, rows: Tensor, offsets: Tensor) -> Tensor:
        group, ranks, each = self.mesh.get_group(), self.mesh.size(), self.each
        counts = torch.zeros(ranks * each, dtype=torch.int64, device=rows.device)
        counts[: self.experts] = offsets.diff()
        theirs = torch.empty_like(counts)  # of my experts: how many rows each rank has for each
        dist.all_to_all_single(theirs, counts, group=group)
        sent = counts.view(ranks, each).sum(1).tolist()
        received = theirs.view(ranks, each).sum(1).tolist()
        mine = _Exchange.apply(rows, sent, received, group)
        # They come by rank and then by expert; a product of groups wants them by expert.
        expert = torch.arange(each, device=rows.device).repeat(ranks).repeat_interleave(theirs)
        order = expert.argsort(stable=True)
        gate_up, down = self._local(layer.gate_up), self._local(layer.down)
        held = gate_up.shape[0]
        if held:
            ends = theirs.view(ranks, each).sum(0).cumsum(0)
            starts = torch.cat((ends.new_zeros(1), ends[:held]))
            y = layer.through_experts(mine.index_select(0, order), starts, gate_up, down)
            back = torch.zeros_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
            mine = y.index_select(0, back)
        else:  # no expert, and no rows; gradients of no elements, as other ranks have theirs
            mine = mine + 0 * (gate_up.sum() + down.sum())
        return _Exchange.apply(mine, received, sent, group)


class ExpertParallel(ParallelStyle):
    """A style for `parallelize_module`: the experts of an `MoE` over the ranks of a mesh.

    Each rank calls the layer with tokens of its own, as under data parallelism, and gets their results;
    ranks must call it together, and may have different numbers of tokens. `gate_up` and `down` become
    DTensors, sharded by experts, evenly or not; router and shared expert stay on every rank, and take the
    values of the mesh's first rank.

    An expert sees the tokens of all ranks, and its gradient is the sum over them. With ``gradients="mean"``
    it is divided by the number of ranks, as DistributedDataParallel and `fully_shard` do with the gradients
    of everything else; ``"sum"`` leaves it. Gradients of router and shared expert are each rank's own: give
    them to one of those.

    >>> import sparse_autotune as sa
    >>> plan = {"moe": sa.distributed.ExpertParallel()}
    >>> # torch.distributed.tensor.parallel.parallelize_module(model, mesh, plan)
    """

    def __init__(self, *, gradients: str = "mean"):
        super().__init__()
        if gradients not in ("mean", "sum"):
            raise ValueError(f"gradients is {gradients!r}; expected 'mean' or 'sum'")
        self.gradients = gradients

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        if not isinstance(module, MoE):
            raise TypeError(f"module is a {type(module).__name__}; expected a sparse_autotune.MoE")
        if device_mesh.ndim != 1:
            raise ValueError(f"device_mesh has {device_mesh.ndim} dimensions; expected 1")
        if module._spread is not None or isinstance(module.gate_up, DTensor):
            raise ValueError(
                "the experts are sharded already; expected parallelize_module before fully_shard"
            )
        source = getattr(self, "src_data_rank", 0)
        group = device_mesh.get_group()
        for name, p in list(module.named_parameters()):
            if name in ("gate_up", "down"):
                made = _distribute(p.detach(), device_mesh, Shard(0), source)
                setattr(module, name, nn.Parameter(made, p.requires_grad))
            elif source is not None and not p.is_meta and not isinstance(p, DTensor):
                there = dist.get_global_rank(group, source)
                dist.broadcast(p.detach(), there, group=group)
        module._spread = _Spread(module.experts, device_mesh, self.gradients == "mean")
        return module
