"""Gradients that are not offered: forward-mode ones, and those of torch.func's transforms.

An operand that asks for one of them is refused. Otherwise its gradient would be lost without a word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .private import apply_plain, in_jvp, is_grad_wrapper, is_wrapped, unwrapped

_NO_TANGENTS = "an operand takes part in forward-mode AD (jvp, jacfwd, dual tensors), which is not offered"
_NO_TRANSFORMS = (
    "an operand takes part in torch.func's grad, vjp or jacrev, which are not offered: use "
    "torch.autograd.grad"
)


def _has_tangent(t: Tensor) -> bool:
    try:
        return torch.autograd.forward_ad.unpack_dual(t).tangent is not None
    except RuntimeError:  # batched by vmap: asked again of what the batch is made of
        return False


def refuse_tangents(*tensors: Any) -> None:
    """Raises where tangents would be lost. Those of torch.func cannot always be seen, so its jvp gets
    nothing. For use inside an open dual level."""
    operands = [t for t in tensors if isinstance(t, Tensor)]
    if operands and (in_jvp() or any(map(_has_tangent, operands))):
        raise NotImplementedError(_NO_TANGENTS)


def refuse_transforms(*tensors: Any) -> None:
    """For use inside a transform of torch.func. What torch itself says of an operator there is about
    autograd.Function."""
    for t in tensors if torch.is_grad_enabled() else ():
        while isinstance(t, Tensor) and is_wrapped(t):
            if is_grad_wrapper(t) and t.requires_grad:
                raise NotImplementedError(_NO_TRANSFORMS)
            t = unwrapped(t)


class ReverseOnly(torch.autograd.Function):
    """A function with a backward pass and no forward-mode derivative."""

    # apply() for tensors that torch.func has not wrapped.
    of_plain = classmethod(apply_plain)

    @staticmethod
    def jvp(ctx, *_tangents):
        raise NotImplementedError(_NO_TANGENTS)
