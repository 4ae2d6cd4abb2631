"""What is remembered of races, in one folder a device.

>>> import sparse_autotune as sa
>>> isinstance(sa.cache.path(), str)
True
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from . import _abi, _context

__all__ = ["clear", "entries", "export", "load", "path", "untuned"]


class MissingFileError(_abi.FileError, FileNotFoundError):
    """A file is not there."""


def _handle(device: Any) -> int:
    return _context.get(_context.normalise(device)).handle


def _file(file: Any) -> bytes:
    try:
        name = os.fsencode(file)
    except TypeError:
        raise TypeError(f"file is a {type(file).__name__}; expected a str or a path") from None
    if b"\0" in name:
        raise ValueError(f"file is {file!r}; expected a name without NUL")
    return name


def path(device: Any = "cpu") -> str:
    """The folder that is written to; "" if there is none. `$SPARSE_AUTOTUNE_CACHE` chooses it, before the
    first product."""
    return _abi.lib.sat_cache_path(_handle(device)).decode()


def _visit(function: Any, handle: int) -> dict[str, str]:
    found: dict[str, str] = {}

    def visit(_user, key, text):
        found[key.decode(errors="replace")] = text.decode(errors="replace")
        return True

    _abi.check(function(handle, _abi.VISIT_FN(visit), None))
    return found


def entries(device: Any = "cpu") -> dict[str, str]:
    """Every entry of a device: its key, and its file as text."""
    return _visit(_abi.lib.sat_cache_visit, _handle(device))


def untuned(device: Any = "cpu", *, folder: str | os.PathLike | None = None) -> dict[str, str]:
    """The problems that effort "cached" had to answer by estimate, or "pinned" did not answer. `folder`: of
    another cache than this process has."""
    if folder is None:
        handle = _handle(device)
    else:
        device = _context.normalise(device)
        handle = _context.Context(device, _abi.EFFORTS["off"], cache_dir=_file(folder)).handle
    return _visit(_abi.lib.sat_cache_visit_untuned, handle)


def export(file: str | os.PathLike, device: Any = "cpu") -> None:
    """Writes all devices' entries into one file, so that a fleet tunes once."""
    _abi.check(_abi.lib.sat_cache_export(_handle(device), _file(file)))


def load(file: str | os.PathLike, device: Any = "cpu") -> int:
    """Adds what an exported file has and the cache has not; how many entries the file has.

    A file that is not there raises FileNotFoundError, which is also a `sparse_autotune.FileError`; one of
    another kind ValueError.
    """
    count = ctypes.c_int64()
    try:
        _abi.check(_abi.lib.sat_cache_import(_handle(device), _file(file), ctypes.byref(count)))
    except _abi.FileError as error:
        if os.path.exists(file):
            raise
        missing = MissingFileError(*error.args)
        missing.status = error.status
        raise missing from None
    return count.value


def clear(key: str | None = None, device: Any = "cpu") -> int:
    """Removes one entry, or all of a device; how many that were. Matrices that have run keep what was chosen
    for them."""
    name = None if key is None else _abi.text(key, "key")
    count = ctypes.c_int64()
    _abi.check(_abi.lib.sat_cache_clear(_handle(device), name, ctypes.byref(count)))
    return count.value
