"""Gradients that are not offered: forward-mode ones, which torch asks for by tangents, are refused rather
than lost; torch.func's by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

_NO_TANGENTS = "an operand takes part in forward-mode AD (jvp, jacfwd, dual tensors), which is not offered"
_NO_TRANSFORMS = (
    "an operand takes part in torch.func's grad, vjp or jacrev, which are not offered: use "
    "torch.autograd.grad"
)


def _has_tangent(t: Tensor) -> bool:
    try:
        return forward_ad.unpack_dual(t).tangent is not None
    except RuntimeError:  # batched by vmap: asked again of what the batch is made of
        return False


def refuse_tangents(*tensors: Any) -> None:
    """Tangents would be lost here. Those of torch.func cannot always be seen, so nothing is done inside its
    jvp."""
    from torch._functorch import eager_transforms

    operands = [t for t in tensors if isinstance(t, Tensor)]
    if operands and (eager_transforms.JVP_NESTING or any(map(_has_tangent, operands))):
        raise NotImplementedError(_NO_TANGENTS)


def refuse_transforms(*tensors: Any) -> None:
    """For use inside a torch.func transform. What torch says itself of an operator there is about
    autograd.Function."""
    for t in tensors if torch.is_grad_enabled() else ():
        while isinstance(t, Tensor) and _functorch.is_functorch_wrapped_tensor(t):
            if _functorch.is_gradtrackingtensor(t) and t.requires_grad:
                raise NotImplementedError(_NO_TRANSFORMS)
            t = _functorch.get_unwrapped(t)


class ReverseOnly(torch.autograd.Function):
    @classmethod
    def of_plain(cls, *arguments):
        """apply() for tensors that functorch has not wrapped, which it looks for in every argument."""
        if torch.compiler.is_dynamo_compiling():  # behind a break in a graph; torch 2.6 cannot follow super()
            return cls.apply(*arguments)
        return super(torch.autograd.Function, cls).apply(*arguments)

    @staticmethod
    def jvp(ctx, *_tangents):
        raise NotImplementedError(_NO_TANGENTS)
