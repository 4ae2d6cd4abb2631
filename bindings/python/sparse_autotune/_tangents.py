"""Gradients that are not offered, and refused rather than lost: forward mode, which torch asks for by tangents, and torch.func.grad."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_NO_TANGENTS = "an operand takes part in forward-mode AD (jvp, jacfwd, dual tensors), which is not offered"


def _has_tangent(t: Tensor) -> bool:
    try:
        return forward_ad.unpack_dual(t).tangent is not None
    except RuntimeError:  # batched by vmap: asked again of what the batch is made of
        return False


def refuse_tangents(*tensors: Any) -> None:
    """Tangents would be lost here. Those of torch.func cannot always be seen, so nothing is done inside its jvp."""
    from torch._functorch import eager_transforms

    operands = [t for t in tensors if isinstance(t, Tensor)]
    if operands and (eager_transforms.JVP_NESTING or any(map(_has_tangent, operands))):
        raise NotImplementedError(_NO_TANGENTS)


def refuse_func_grad(*tensors: Any) -> None:
    """torch.func.grad, vjp and what is made of them take other rules than the operators have."""
    levels = torch._C._functorch.get_interpreter_stack()
    if not levels or not torch.is_grad_enabled():
        return
    if any(level.key() == torch._C._functorch.TransformType.Grad for level in levels) and any(t is not None and t.requires_grad for t in tensors):
        raise NotImplementedError("an operand takes part in torch.func's grad, vjp or jacrev, which is not offered: use torch.autograd.grad")


class ReverseOnly(torch.autograd.Function):
    @staticmethod
    def jvp(ctx, *_tangents):
        raise NotImplementedError(_NO_TANGENTS)
