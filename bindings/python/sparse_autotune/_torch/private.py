"""Everything private to torch that this package uses, each with a fallback.

torch promises nothing about these names: a release may drop or rename any of them. So each is looked up here,
once, by `_find`, and nowhere else. Where one is missing, one of two things takes its place:

- a public function of torch that does the same, usually slower;
- an answer that is safe. If nobody can tell whether a mode is active, a mode may be active, and the call goes
  through the operators of `operators.py`. Those are right everywhere.

`names` says what was looked for and whether it was there. A test hides each name in turn, and all of them at
once, and compares results.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.func  # loads what torch.func consists of
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

names: dict[str, bool] = {}


def _find(path: str) -> Any:
    """What stands at a dotted path that begins with "torch.", or None."""
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    names[path] = found is not None
    return found


# ---- what may surround a call: modes, traces, transforms, autocast ----

_MODE_STACK = "torch.utils._python_dispatch._get_current_dispatch_mode_stack"


def _mode_count() -> Callable[[], int]:
    count = _find("torch._C._len_torch_dispatch_stack")
    stack = _find(_MODE_STACK)
    return count or (lambda: 1 if stack is None else len(stack()))


# How many modes see this thread's operators. 1 where nobody can tell.
mode_count = _mode_count()

# Whether torch.jit.trace records this thread.
is_tracing: Callable[[], bool] = _find("torch._C._is_tracing") or torch.jit.is_tracing

# Modes before the dispatcher (make_fx with pre_dispatch) stand in a list of torch's, one for all threads.
# torch fills and empties it in place. It is read first because that is quick. `[...]`: one may be there.
early_modes = _find(
    "torch._ops._mode_stack_state_for_pre_dispatch._ModeStackStateForPreDispatch__infra_modes"
)
if not isinstance(early_modes, list):
    early_modes = [...]

_includes_key = _find("torch._C._dispatch_tls_is_dispatch_key_included")
_pre_dispatch = _find("torch._C.DispatchKey.PreDispatch")


def before_dispatch() -> bool:
    """Whether a mode before the dispatcher is this thread's. True where nobody can tell."""
    return True if _includes_key is None or _pre_dispatch is None else _includes_key(_pre_dispatch)


def _interpreter() -> Callable[[], Any]:
    found = _find("torch._C._functorch.peek_interpreter_stack")
    level = _find("torch._C._functorch.maybe_current_level")
    return found or level or (lambda: ...)


# The innermost transform of torch.func around this call, or None. `...` where nobody can tell.
interpreter = _interpreter()


def _has_no_memory(t: Tensor) -> bool:
    """Whether a tensor wraps another one: wrappers have no address."""
    try:
        t.data_ptr()
    except RuntimeError:
        return True
    return False


# Whether vmap of old (torch.autograd.functional, vectorize=True), or torch.func, has wrapped a tensor.
is_legacy_batched: Callable[[Tensor], bool] = (
    _find("torch._C._functorch.is_legacy_batchedtensor") or _has_no_memory
)
is_wrapped: Callable[[Tensor], bool] = (
    _find("torch._C._functorch.is_functorch_wrapped_tensor") or _has_no_memory
)

# Whether the wrapper is one for gradients. Where nobody can tell, torch refuses such operands itself.
is_grad_wrapper: Callable[[Tensor], bool] = _find("torch._C._functorch.is_gradtrackingtensor") or (
    lambda t: False
)
_unwrap = _find("torch._C._functorch.get_unwrapped")


def unwrapped(t: Tensor) -> Tensor | None:
    """What a wrapper of torch.func holds, or None."""
    try:
        return None if _unwrap is None else _unwrap(t)
    except RuntimeError:  # not a wrapper of torch.func
        return None


# Whether every call counts as surrounded by a mode or a transform, because nobody can tell.
always_watched = (
    not (names["torch._C._len_torch_dispatch_stack"] or names[_MODE_STACK])
    or interpreter() is ...
    or (early_modes == [...] and (_includes_key is None or _pre_dispatch is None))
)

# Whether autocast is on, for any device.
any_autocast: Callable[[], bool] = _find("torch._C._is_any_autocast_enabled") or (
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
)

# ---- forward-mode AD ----


class _Level:
    """Stands in for torch.autograd.forward_ad where that has no `_current_level`."""

    def __init__(self) -> None:
        self._zero = torch.zeros(())

    @property
    def _current_level(self) -> int:
        """0 where a dual level is open, else -1: make_dual raises outside of one."""
        try:
            torch.autograd.forward_ad.make_dual(self._zero, self._zero)
        except RuntimeError:
            return -1
        return 0


# Its `_current_level` is -1 where no dual tensor can exist.
forward_ad: Any = (
    torch.autograd.forward_ad if _find("torch.autograd.forward_ad._current_level") is not None else _Level()
)
_transforms = _find("torch._functorch.eager_transforms")
_find("torch._functorch.eager_transforms.JVP_NESTING")


def in_jvp() -> bool:
    """Inside an open dual level: whether it may be torch.func's jvp, whose tangents cannot always be seen."""
    return getattr(_transforms, "JVP_NESTING", 1) > 0


if _find("torch.autograd.function._SingleLevelFunction.apply") is not None:

    def apply_plain(function: Any, *arguments: Any) -> Any:
        """function.apply() without its look for wrappers of torch.func in every argument."""
        if torch.compiler.is_dynamo_compiling():  # behind a break in a graph; torch 2.6 cannot follow super()
            return function.apply(*arguments)
        return super(torch.autograd.Function, function).apply(*arguments)

else:

    def apply_plain(function: Any, *arguments: Any) -> Any:
        return function.apply(*arguments)


# ---- fake tensors ----

_mode_of = _find("torch._C._get_dispatch_mode")
_fake_key = _find("torch._C._TorchDispatchModeKey.FAKE")


def fake_mode() -> Any:
    """The FakeTensorMode around this call, or None."""
    if _mode_of is not None and _fake_key is not None:
        return _mode_of(_fake_key)
    return getattr(torch.empty(0), "fake_mode", None) if mode_count() > 0 else None


# ---- autocast inside operators ----

_key_set, _key_guard = _find("torch._C.DispatchKeySet"), _find("torch._C._ExcludeDispatchKeyGuard")


def without_autocast(device: str) -> Callable[[], AbstractContextManager]:
    """What makes contexts in which operators do not come to autocast of this device again."""
    key = _find(f"torch._C.DispatchKey.Autocast{device.upper()}")
    if key is None or _key_set is None or _key_guard is None:
        return functools.partial(torch.autocast, device, enabled=False)
    return functools.partial(_key_guard, _key_set(key))


# ---- CUDA ----

# The handle of a device's current stream, by the device's index.
current_stream: Callable[[int], int] = _find("torch._C._cuda_getCurrentRawStream") or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)

# Whether float32 products may be rounded to TF32. Raises where torch was set in two ways that disagree.
allows_tf32: Callable[[], bool] = _find("torch._C._get_cublas_allow_tf32") or (
    lambda: torch.backends.cuda.matmul.allow_tf32
)

# ---- tensors ----


@functools.cache
def quick_maker(kind: str) -> Any:
    """The function by which torch.compile's own code makes tensors on the CPU or the current GPU, or None.

    It takes half of empty_like's time. It must be there and do what is expected of it.
    """
    make = _find(f"torch._C._dynamo.guards._empty_strided_{kind}")
    try:
        made = make((2, 3), (1, 4), torch.float32)
        found = made.shape, made.stride(), made.dtype, made.device.type
        return make if found == ((2, 3), (1, 4), torch.float32, kind) else None
    except (AttributeError, TypeError, RuntimeError):
        return None


_find("torch._C._dynamo.guards._empty_strided_cpu")
_find("torch._C._dynamo.guards._empty_strided_cuda")

counts_writes = _find("torch.Tensor._version") is not None

if counts_writes:

    def version_of(t: Tensor) -> Any:
        """torch's count of writes to a tensor. It counts none to those made in inference mode."""
        return 0 if t.is_inference() else t._version

else:

    def version_of(t: Tensor) -> Any:
        """Equal to no other: the tensor may have been written to."""
        return object()


if _find("torch.UntypedStorage._cdata") is not None:

    def storage_id(t: Tensor) -> int:
        """A number for a tensor's storage, whose own it is while somebody holds a StorageWeakRef of it."""
        return t.untyped_storage()._cdata

else:

    def storage_id(t: Tensor) -> int:
        return StorageWeakRef(t.untyped_storage()).cdata


def mark_static(t: Tensor) -> None:
    """Tells torch.compile that a tensor's address never changes: CUDA graphs need not copy it. A torch that
    does not read this attribute copies."""
    t._dynamo_static_input_type = "unguarded"


# Makes a tensor of a subclass that has dtype, device and shape, and no memory; or None.
memoryless: Any = _find("torch.Tensor._make_wrapper_subclass")

# The functions of DLPack that C code may call, of torch 2.10 and newer, or None.
dlpack_exchange = _find("torch.Tensor.__dlpack_c_exchange_api__")

# ---- torch.compile ----


def _check(condition: Any, message: Callable[[], str]) -> None:
    if not condition:
        raise RuntimeError(message())


# Raises where a condition does not hold; torch.compile may take it for granted from then on.
check: Callable[[Any, Callable[[], str]], None] = _find("torch._check") or _check


def outside_graphs(call: Callable) -> Callable:
    """A function of constants that torch.compile calls while it traces, and that is no part of the graph.
    torch.compiler.assume_constant_result would import the compiler here and now."""
    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call


# Keeps torch.compile out of a function. torch.compiler.disable would import the compiler here and now.
outside_compiler: Callable[[Any], Any] = _find("torch._disable_dynamo") or torch.compiler.disable

names["torch._dynamo"] = importlib.util.find_spec("torch._dynamo") is not None


def compiler_is_loaded() -> bool:
    """Whether anything can have been compiled in this program. True where nobody can tell."""
    return "torch._dynamo" in sys.modules or not names["torch._dynamo"]


# ---- modules ----

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
)
_PRE_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
_empty_module = torch.nn.Module()
_hooks, _pre_hooks = (
    tuple(name for name in group if getattr(_empty_module, name, ...) is not ...)
    for group in (_HOOKS, _PRE_HOOKS)
)
for _name in (*_HOOKS, *_PRE_HOOKS, "_modules", "_parameters"):
    names[f"torch.nn.Module().{_name}"] = getattr(_empty_module, _name, ...) is not ...
_has_modules, _has_parameters = names["torch.nn.Module()._modules"], names["torch.nn.Module()._parameters"]


def hook_names(pre_hooks: bool) -> tuple[str, ...]:
    """Attributes of a module that hold its hooks, as far as this torch has them."""
    return (*_hooks, *_pre_hooks) if pre_hooks else _hooks


def submodules(module: torch.nn.Module) -> dict[str, Any]:
    """A module's own submodules by name. One that stands under two names is there twice."""
    if _has_modules:
        return module._modules
    found = module.named_modules(remove_duplicate=False)
    return {name: child for name, child in found if name and "." not in name}


def parameters(module: torch.nn.Module) -> dict[str, Any]:
    """A module's own parameters by name; None for one that it does without."""
    if _has_parameters:
        return module._parameters
    found: dict[str, Any] = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    if getattr(module, "bias", ...) is None:
        found["bias"] = None
    return found


# ---- torch's own attention ----

flash_cpu = _find("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu")
flash_cpu_backward = _find("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward")
flash = _find("torch.ops.aten._flash_attention_forward")
flash_backward = _find("torch.ops.aten._flash_attention_backward")
cudnn = _find("torch.ops.aten._scaled_dot_product_cudnn_attention")
efficient = _find("torch.ops.aten._scaled_dot_product_efficient_attention")


# ---- distributed ----


def default_store() -> Any:
    """The store of torch.distributed's process group; None where it is not to be had."""
    get = _find("torch.distributed.distributed_c10d._get_default_store")
    return None if get is None else get()
