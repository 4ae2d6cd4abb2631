"""What may surround a call of torch's: modes, traces and transforms, which want to see operators, and make
tensors what they are not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _context

_C = torch._C

# Modes before the dispatcher (make_fx with pre_dispatch) stand in a list of torch's, one for all threads,
# that is filled and emptied in place. It is looked at first because that is quick; where it is not there, the
# thread is always asked.
early = getattr(
    getattr(torch._ops, "_mode_stack_state_for_pre_dispatch", None),
    "_ModeStackStateForPreDispatch__infra_modes",
    None,
)
if not isinstance(early, list):
    early = [...]


def before_dispatch() -> bool:
    """Whether such a mode is this thread's."""
    return _C._dispatch_tls_is_dispatch_key_included(_C.DispatchKey.PreDispatch)


def watched() -> bool:
    """Whether a mode, in the dispatcher or before it, or a trace wants to see operators."""
    return (
        _C._len_torch_dispatch_stack() > 0
        or _C._is_tracing()
        or (early.count(None) < len(early) and before_dispatch())
    )


def transformed() -> bool:
    """Whether a transform of torch.func has a part in what is called."""
    return _C._functorch.peek_interpreter_stack() is not None


def makes_fakes(known: Any) -> bool:
    """Whether a FakeTensorMode has to make a tensor of its own: there is no known one, or it takes no real
    ones."""
    if torch.compiler.is_dynamo_compiling():
        return False
    mode = _C._get_dispatch_mode(_C._TorchDispatchModeKey.FAKE)
    return mode is not None and (known is None or not mode.allow_non_fake_inputs)


def lasting(make: Callable, *arguments: Any, aside: bool = False) -> Any:
    """make(*arguments), to stay: in a thread of its own where modes and transforms would have a part in
    it."""
    aside = aside or watched() or transformed()
    made = _context._aside(make, *arguments) if aside else None
    return make(*arguments) if made is None else made
