"""What may surround a call of torch's: modes, traces and transforms.

They want to see operators, and tensors made inside them are not what they are elsewhere. So every call asks
`plain` or `watched` before it goes past the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _context
from .._quick import _fast
from . import private
from .private import (
    any_autocast,
    before_dispatch,
    early_modes,
    interpreter,
    is_legacy_batched,
    is_tracing,
    is_wrapped,
    mode_count,
)
from .refusals import refuse_transforms


def watched() -> bool:
    """Whether a mode, in the dispatcher or before it, or a trace wants to see operators."""
    return (
        mode_count() > 0 or is_tracing() or (early_modes.count(None) < len(early_modes) and before_dispatch())
    )


def transformed() -> bool:
    """Whether this is called inside a transform of torch.func."""
    return interpreter() is not None


def surrounded() -> bool:
    """Whether plain tensors, none of which requires gradients, need torch's machinery all the same."""
    return any_autocast() or interpreter() is not None or watched()


def plain(*tensors: Any) -> bool:
    """Whether these tensors can go past the dispatcher. What torch.func cannot have is refused."""
    if _fast is not None and _fast.plain(*tensors):
        return True
    if interpreter() is not None:
        refuse_transforms(*tensors)
        return False
    for t in tensors:
        if t is None:
            continue
        if (type(t) is not Tensor and type(t) is not Parameter) or is_legacy_batched(t) or is_wrapped(t):
            return False  # wrapped: what a transform that has ended left behind
    return not watched()


def makes_fakes(known: Any) -> bool:
    """Whether a FakeTensorMode has to make a tensor of its own: there is no known one, or it takes no real
    ones."""
    if torch.compiler.is_dynamo_compiling():
        return False
    mode = private.fake_mode()
    return mode is not None and (known is None or not getattr(mode, "allow_non_fake_inputs", False))


def lasting(make: Callable, *arguments: Any, aside: bool = False) -> Any:
    """make(*arguments), for tensors that outlive the call.

    Where modes or transforms surround the call, or with `aside`, another thread makes them: those belong to
    this thread.
    """
    aside = aside or watched() or transformed()
    made = _context._aside(make, *arguments) if aside else None
    return make(*arguments) if made is None else made
