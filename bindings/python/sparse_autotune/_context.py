"""Contexts: one a device and effort, made when first needed and kept until the process ends."""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from typing import Any

from . import _abi
from ._arrays import torch_module

_lock = threading.RLock()
_contexts: dict[tuple[str, int], Context] = {}
_registered: list[tuple[int, Any]] = []  # backend and variant, for contexts that are made later
_effort = _abi.EFFORTS["default"]
_agreement: _abi.Agreement | None = None  # with the other ranks of a job
_watchers: list[Any] = []
_warned: set[str] = set()  # once a process


_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Context:
    """A sat_context. Never freed: plans, graphs and callbacks may outlive every Python object."""

    def __init__(self, device: str, effort: int, **more: Any):
        options = _abi.ContextOptions(device=device.encode(), effort=effort, **more)
        self._allocator = _torch_allocator(device)
        if self._allocator is not None:
            options.allocator = ctypes.pointer(self._allocator)
        handle = ctypes.c_void_p()
        _abi.check(_abi.lib.sat_context_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle, self.device = handle.value, device
        self.backend = _abi.lib.sat_context_device(handle).contents.backend
        for backend, variant in _registered:
            if backend == self.backend:
                _abi.check(_abi.lib.sat_variant_register(handle, ctypes.byref(variant)))
        if _agreement is not None:
            _abi.check(_abi.lib.sat_context_agree(handle, ctypes.byref(_agreement)))

    @property
    def info(self) -> _abi.Device:
        return _abi.lib.sat_context_device(self.handle).contents

    def ignored(self) -> str:
        """What the environment asks for and the library does not do; "" if there is nothing of the kind."""
        text = ctypes.create_string_buffer(512)
        _abi.check(_abi.lib.sat_context_ignored(self.handle, text, len(text)))
        return text.value.decode(errors="replace")

    def warn_ignored(self) -> None:
        message = self.ignored()
        if message and message not in _warned:
            _warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=2)


@functools.cache
def driver_function(name: str) -> Any:
    """A function of the CUDA driver, which is loaded already where a GPU is used; None without it."""
    try:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        return None


def _aside(call: Any, *arguments: Any) -> Any:
    """What call(*arguments) returns in a thread of its own; None where it raises.

    While torch warms up a CUDA graph (torch.compile, "reduce-overhead") it puts all that the thread
    allocates, on whatever stream, into the graph's memory, and takes that back afterwards. What outlives the
    call is allocated by another thread, and in a mode that a capture of the caller's does not mind.
    """
    found: list[Any] = []

    def run() -> None:
        try:
            exchange = driver_function("cuThreadExchangeStreamCaptureMode")
            if exchange is not None:
                exchange(ctypes.byref(ctypes.c_int(_RELAXED)))
            found.append(call(*arguments))
        except Exception:  # out of memory: the library makes do with less
            pass

    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
    except RuntimeError:  # the interpreter is shutting down
        return None
    return found[0] if found else None


def _own_stream(torch: Any, index: int) -> int:
    """A stream that nothing else uses. torch's own come from a pool of 32 and are handed out again and
    again."""
    stream = ctypes.c_void_p()
    with torch.cuda.device(index):
        torch.cuda.check_error(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(stream)))
    return stream.value or 0


def _torch_allocator(device: str) -> _abi.Allocator | None:
    """Device memory from torch's caching allocator, where torch uses that device.

    Blocks are asked for on a stream that nothing else uses, so a block that is given back and asked for again
    was never in the hands of work that is still queued.
    """
    torch = torch_module()
    if not device.startswith("cuda") or torch is None or not torch.cuda.is_initialized():
        return None
    index = int(device.split(":")[1])
    stream = _aside(_own_stream, torch, index) or torch.cuda.Stream(index).cuda_stream

    def alloc(_user, size, _alignment):
        return _aside(torch.cuda.caching_allocator_alloc, max(size, 1), index, stream)  # 512 bytes aligned

    def free(_user, pointer):
        try:
            torch.cuda.caching_allocator_delete(pointer)
        except Exception:
            pass  # the interpreter or CUDA is shutting down, and the memory goes with it

    return _abi.Allocator(alloc=_abi.ALLOC_FN(alloc), free=_abi.FREE_FN(free))


def get(device: str, effort: int | None = None) -> Context:
    """The context of a device ("cpu", "cuda:0") at an effort, by default the current one."""
    key = (device, _effort if effort is None else effort)
    found = _contexts.get(key)
    if found is not None:
        return found
    with _lock:
        if key not in _contexts:
            _contexts[key] = Context(*key)
        return _contexts[key]


def register(backend: int, variant: _abi.Variant) -> None:
    with _lock:
        for context in _contexts.values():
            if context.backend == backend:
                _abi.check(_abi.lib.sat_variant_register(context.handle, ctypes.byref(variant)))
        _registered.append((backend, variant))
    _changed()


def agree(agreement: _abi.Agreement) -> None:
    """Of all contexts, now and later."""
    global _agreement
    with _lock:
        for context in _contexts.values():
            _abi.check(_abi.lib.sat_context_agree(context.handle, ctypes.byref(agreement)))
        _agreement = agreement
    _changed()


def normalise(device: Any, name: str = "device") -> str:
    """ "cpu" or "cuda:<index>" from a string or a torch.device."""
    text = str(device)
    if text == "cpu":
        return text
    kind, _, index = text.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ValueError(f"{name} is {text!r}; expected 'cpu', 'cuda' or 'cuda:<index>'")
    if index:
        return text
    torch = torch_module()
    current = torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    return f"cuda:{current}"


def epoch() -> int:
    """Changes with all that a plan, once made, does not follow: the effort, variants, an agreement."""
    return _effort + 8 * (len(_registered) + (_agreement is not None))


def on_change(watcher: Any) -> None:
    """Calls watcher(epoch) now and whenever the epoch changes."""
    _watchers.append(watcher)
    watcher(epoch())


def _changed() -> None:
    for watcher in _watchers:
        watcher(epoch())


class set_effort:  # a function to its users, and a context manager
    """How much may be spent on a problem that is not in the cache yet, for the whole process.

    ``"off"``: the estimate decides; ``"cached"``: the cache, else the estimate; ``"quick"`` (the default): a
    race of about a second; ``"full"``: about ten seconds, and no variant is skipped; ``"pinned"``: the
    cache's winner and nothing else, so that every run gives the same bits, and an `Error` that names the
    problem where the cache has none; ``"default"``: what ``$SPARSE_AUTOTUNE`` says, else quick. As a context
    manager it puts back what was set before.

    >>> import sparse_autotune as sa
    >>> with sa.set_effort("off"):
    ...     sa.get_effort()
    'off'
    """

    def __init__(self, effort: str):
        global _effort
        if not isinstance(effort, str) or effort not in _abi.EFFORTS:
            raise ValueError(f"effort is {effort!r}; expected one of {', '.join(_abi.EFFORTS)}")
        self._before, _effort = _effort, _abi.EFFORTS[effort]
        _changed()

    def __enter__(self) -> set_effort:
        return self

    def __exit__(self, *_exception: object) -> None:
        global _effort
        _effort = self._before
        _changed()

    def __repr__(self) -> str:
        return f"set_effort({get_effort()!r})"


def get_effort() -> str:
    """The effort that is in force."""
    effort = _effort
    if effort == _abi.EFFORTS["default"]:
        context = next((c for (_, e), c in list(_contexts.items()) if e == effort), None) or get("cpu")
        context.warn_ignored()
        effort = _abi.lib.sat_context_effort(context.handle)
    return next(name for name, value in _abi.EFFORTS.items() if value == effort)


def effort_of_captures() -> str:
    """Nothing is raced while a CUDA graph is captured."""
    return "pinned" if get_effort() == "pinned" else "cached"


def workers(d: _abi.Device) -> dict[str, int]:
    """How many a run is shared by: a GPU's multiprocessors, a CPU's threads."""
    return {"multiprocessors": d.multiprocessors} if d.backend == _abi.CUDA else {"threads": d.threads}


def device_info(device: Any = "cpu") -> dict[str, Any]:
    """What the library knows of a device.

    >>> import sparse_autotune as sa
    >>> sa.device_info("cpu")["backend"]
    'cpu'
    """
    d = get(normalise(device)).info
    rates = {short: d.flop_rate[code] for code, short in _abi.DTYPE_SHORT.items()}
    return {
        "backend": "cuda" if d.backend == _abi.CUDA else "cpu",
        "index": d.index,
        "name": d.name.decode(),
        "identity": d.identity.decode(),
        **workers(d),
        "capability": d.capability,
        "memory_bytes": d.memory_bytes,
        "memory_rate": d.memory_rate,
        "flop_rate": rates,
        "tf32_rate": d.tf32_rate,
        "l2_bytes": d.l2_bytes,
        "l2_rate": d.l2_rate,
        "measured": bool(d.measured),
    }
