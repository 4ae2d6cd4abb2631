"""Forward-mode gradients, which torch asks for by tangents: not offered, and refused rather than lost."""

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


class ReverseOnly(torch.autograd.Function):
    @staticmethod
    def jvp(ctx, *_tangents):
        raise NotImplementedError(_NO_TANGENTS)
