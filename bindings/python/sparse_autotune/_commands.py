"""``python -m sparse_autotune tune``, ``cache``, ``info`` and ``doctor``: subcommands of the command line in
the same words, for those who have the package alone."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import sparse_autotune as sa

from . import _abi, _context, _race, _untuned, cache

_VARIABLES = (
    "SPARSE_AUTOTUNE",
    "SPARSE_AUTOTUNE_CACHE",
    "SPARSE_AUTOTUNE_DEVICE",
    "SPARSE_AUTOTUNE_FORCE",
    "SPARSE_AUTOTUNE_LOG",
    "OMP_NUM_THREADS",
    "XDG_CACHE_HOME",
)
_ISA = {8: "AMX", 1: "AVX2", 2: "AVX-512", 4: "AVX-512 BF16"}


def add(commands: Any) -> None:
    """The subcommands and their options."""
    tune = commands.add_parser(
        "tune",
        help="race the problems that were answered by estimate",
        description="Races the problems that SPARSE_AUTOTUNE=cached had to answer by estimate, and remembers "
        "the results.",
    )
    tune.add_argument("--effort", choices=["quick", "full"], default="quick", help="how long to look")
    tune.add_argument("--list", action="store_true", help="list the problems and tune nothing")
    tune.add_argument(
        "--notes", metavar="DIR", help="the cache whose problems are raced, where it is another one"
    )
    tune.add_argument("--world", type=int, default=1, help="processes that share the problems (1)")
    tune.add_argument("--rank", type=int, default=0, help="which of them this is, from 0 on (0)")
    tune.add_argument("--store", metavar="DIR", help="a folder that all of them see, new for each run")
    tune.add_argument("--wait", type=float, default=60, help="seconds to wait for a race of another one (60)")
    keep = commands.add_parser(
        "cache",
        help="list, show, export, import and clear what is remembered",
        description="KEY is an entry's key, or the id that list shows. Export writes the entries of all "
        "devices into one file; import keeps what is there and adds what is not; clear without a key removes "
        "every entry of this device.",
    )
    keep.add_argument("action", choices=list(_ACTIONS), nargs="?", default="list")
    keep.add_argument("word", nargs="?", metavar="KEY|FILE", help="of show, clear; of export, import")
    info = commands.add_parser("info", help="show the device, its libraries, the cache and the environment")
    doctor = commands.add_parser(
        "doctor",
        help="say what is missing for more speed, with a remedy for each",
        description="Shows what is found on this machine and what is missing for more speed, with a remedy "
        "for each. It imports torch and SciPy where they are installed, since they bring libraries along. It "
        "writes a small file into the cache's folder and removes it. The exit status is 1 only if something "
        "is broken.",
    )
    for one in (tune, keep, info, doctor):
        one.add_argument("--device", help="cpu, cuda or cuda:1; by default the best that is found")
    for one in (keep, info, doctor):
        one.add_argument("--json", action="store_true", help="print one JSON object")


def device(a: argparse.Namespace) -> str:
    """The one that is asked for, else the best that is found."""
    asked = a.device or os.environ.get("SPARSE_AUTOTUNE_DEVICE")
    if asked:
        return _context.normalise(asked)
    try:
        _context.get("cuda:0")
        return "cuda:0"
    except sa.Error:
        return "cpu"


def _fail(message: str) -> int:
    print(f"sparse_autotune: {message}", file=sys.stderr)
    return 1


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _scaled(x: float, unit: str) -> str:
    return f"{x:.{3 if x < 9.9995 else 2 if x < 99.995 else 1 if x < 999.95 else 0}f} {unit}"


def _seconds(s: float) -> str:
    scale, unit = next(pair for pair in ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (0, "ns")) if s >= pair[0])
    return _scaled(s / (scale or 1e-9), unit)


def _rate(rate: float) -> str:
    scale, unit = (1e6, "MFLOPS") if rate < 1e9 else (1e9, "GFLOPS") if rate < 1e13 else (1e12, "TFLOPS")
    return _scaled(rate / scale, unit)


def _bytes(size: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if size == int(size) else f"{size:.1f} {units[0]}"


# ---- tune ----


def _agreement(a: argparse.Namespace) -> _abi.Agreement | None:
    """With the other ranks; None: this process is alone."""
    if a.world < 1:
        raise ValueError(f"--world {a.world}: expected at least 1")
    if not 0 <= a.rank < a.world:
        raise ValueError(f"--rank {a.rank}: expected 0 to {a.world - 1}, below --world")
    if a.store is None and a.world == 1:
        return None
    if a.store is None:
        raise ValueError(f"--world {a.world}: expected --store, a folder that all ranks see")
    made = _abi.Agreement()
    _abi.check(_abi.lib.sat_agreement_folder(os.fsencode(a.store), a.rank, a.world, ctypes.byref(made)))
    made.wait_seconds = a.wait
    return made


def _share(a: argparse.Namespace, name: str, key: str, text: str, agreement: _abi.Agreement) -> bool:
    """Whether it was raced here."""
    info, title = _untuned.share(name, a.effort, key, text, agreement), " ".join(text.split()[:6])
    if not (info.tuned or info.cached or info.verified):
        raise ValueError(f"{title}: no rank raced it within {a.wait:g} s, and the estimate serves")
    print(f"{title}: {info.variant.decode()}, {'raced' if info.tuned else 'checked'} here", flush=True)
    return info.tuned


def _tune(a: argparse.Namespace, name: str, key: str, text: str) -> None:
    race = _untuned.tune(name, a.effort, key, text)
    best = race.best
    if best is None:
        raise ValueError(f"{race.title()}: nothing that may win gave a right result")
    near = "" if race.problem["key"] == key else " (of a problem close to it: its key differs)"
    print(f"{race.title()}: {best.variant}, {_seconds(best.seconds)}{near}", flush=True)


def run_tune(a: argparse.Namespace) -> int:
    name, code, raced = device(a), 0, 0
    notes = list(cache.untuned(name, folder=a.notes).items())
    if a.list:
        for _, text in notes:
            print(text)
        return 0
    agreement = _agreement(a)
    first = len(notes) * a.rank // a.world  # each rank begins elsewhere, so that all race at the same time
    for key, text in notes[first:] + notes[:first]:
        try:
            if agreement is None:
                _tune(a, name, key, text)
            else:
                raced += _share(a, name, key, text, agreement)
        except (ValueError, RuntimeError, MemoryError) as error:
            code = _fail(str(error))
    count = f"{len(notes)} {'problem' if len(notes) == 1 else 'problems'}"
    print(count if agreement is None else f"{count}, {raced} raced here")
    return code


# ---- cache ----


def _id(key: str) -> str:
    """A short name for a key: FNV-1a, folded."""
    h = 0xCBF29CE484222325
    for byte in key.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{(h ^ h >> 32) & 0xFFFFFFFF:08x}"


def _summary(key: str, text: str, flags: dict[str, int]) -> dict[str, Any]:
    """How many results an entry has, and the fastest right one of its last race."""
    found: dict[str, Any] = {"results": 0, "fastest": None, "seconds": 0.0, "spread": 0.0, "busy": False}
    race = None
    for line in text.splitlines():
        record = dict(field.partition("=")[::2] for field in line.split("\t"))
        if record.get("kind") != "raced" or "race" not in record:
            continue
        found["results"] += 1
        if record["race"] != race:  # oldest come first
            race, found["seconds"], found["fastest"] = record["race"], 0.0, None
        found["busy"] = record.get("busy") == "1"
        variant, seconds = record.get("variant", ""), float(record.get("seconds", 0))
        flag, words = flags.get(variant), key.split()
        may_win = (
            record.get("may_win") == "1"
            if flag is None
            else (not flag & _abi.V_DENSE or "dense" in words)
            and (not flag & _abi.V_NONDETERMINISTIC or "nondeterministic" in words)
        )
        faster = seconds > 0 and (found["fastest"] is None or seconds < found["seconds"])
        if record.get("verdict") == "ok" and may_win and faster:
            found |= {"fastest": variant, "seconds": seconds, "spread": float(record.get("spread", 0))}
    return found


def _list(a: argparse.Namespace, name: str) -> int:
    if a.word:
        raise ValueError(f"list: unexpected {a.word!r}")
    flags, path = _race._flags_by_name(_context.get(name)), cache.path(name)
    entries = [
        {"id": _id(key), "key": key, **_summary(key, text, flags)}
        for key, text in sorted(cache.entries(name).items())
    ]
    if a.json:
        print(json.dumps({"version": 1, "cache": path, "entries": entries}))
        return 0
    rows = [("id", "results", "fastest of the last race", "time", "spread", "key")]
    for e in entries:
        time, spread = "-", "-"
        if e["fastest"]:
            time = _seconds(e["seconds"])
            spread = f"+-{100 * e['spread'] / e['seconds']:.1f} %{', busy' if e['busy'] else ''}"
        rows.append((e["id"], str(e["results"]), e["fastest"] or "-", time, spread, e["key"]))
    if entries:
        _table(rows)
    print(f"{_entries(len(entries))} in {path or 'memory'}")
    return 0


def _find(word: str, name: str) -> tuple[str, str]:
    for key, text in cache.entries(name).items():
        if word in (key, _id(key)):
            return key, text
    raise ValueError(f"{word!r}: no entry of that key or id; `cache list` shows them")


def _show(a: argparse.Namespace, name: str) -> int:
    if not a.word:
        raise ValueError("show: expected one key or id, as list shows them")
    key, text = _find(a.word, name)
    if a.json:
        print(json.dumps({"version": 1, "id": _id(key), "key": key, "text": text}))
    else:
        print(text, end="")
    return 0


def _export(a: argparse.Namespace, name: str) -> int:
    if not a.word:
        raise ValueError("export: expected one file to write")
    cache.export(a.word, name)
    return 0


def _import(a: argparse.Namespace, name: str) -> int:
    if not a.word:
        raise ValueError("import: expected one file, as export writes them")
    print(f"{_entries(cache.load(a.word, name))} taken from {a.word}")
    return 0


def _clear(a: argparse.Namespace, name: str) -> int:
    key = _find(a.word, name)[0] if a.word else None
    print(f"{_entries(cache.clear(key, name))} removed")
    return 0


_ACTIONS = {"list": _list, "show": _show, "export": _export, "import": _import, "clear": _clear}


def run_cache(a: argparse.Namespace) -> int:
    return _ACTIONS[a.action](a, device(a))


# ---- info ----


def _why_not_cuda(d: _abi.Device, asked: str | None) -> str | None:
    if d.backend == _abi.CUDA:
        return None
    try:
        _context.get("cuda:0")
    except sa.Error as error:
        return str(error).removeprefix("device is 'cuda:0'; ").removesuffix(f" ({error.status})")
    return f"it would work, and {'--device' if asked else 'SPARSE_AUTOTUNE_DEVICE'} is 'cpu'"


def _libraries(context: _context.Context) -> list[str]:
    found = []
    for i in range(_abi.lib.sat_variant_count(context.handle)):
        v = _abi.lib.sat_variant_at(context.handle, i).contents
        if v.flags & _abi.V_LIBRARY:
            found.append(v.revision.decode())
    return list(dict.fromkeys(found))


def isa(d: _abi.Device) -> str:
    return ", ".join(text for bit, text in _ISA.items() if d.isa & bit)


def _lines(d: _abi.Device) -> list[tuple[str, str]]:
    """Of the device."""
    rates = [f"memory {d.memory_rate * 1e-9:.1f} GB/s"]
    rates += [f"L2 {d.l2_rate * 1e-9:.1f} GB/s"] if d.l2_rate > 0 else []
    rates += [f"{short} {_rate(d.flop_rate[code])}" for code, short in _abi.DTYPE_SHORT.items()]
    if d.backend == _abi.CUDA:
        lines = [
            ("processors", f"{d.multiprocessors}, capability {d.capability // 10}.{d.capability % 10}"),
            ("driver", f"{d.driver // 1000}.{d.driver % 1000 // 10}"),
            (
                "caches",
                f"L2 {_bytes(d.l2_bytes)}; shared memory {_bytes(d.l1_bytes)} a multiprocessor, "
                f"{_bytes(d.shared_bytes)} a block",
            ),
        ]
        rates.append(f"tf32 {_rate(d.tf32_rate)}")
    else:
        caches = f"L1 {_bytes(d.l1_bytes)} and L2 {_bytes(d.l2_bytes)} a core, L3 {_bytes(d.l3_bytes)}"
        lines = [
            ("threads", str(d.threads)),
            ("isa", isa(d) or "none beyond the compiler's default"),
            ("caches", caches),
        ]
    measured = "measured" if d.measured else "nominal"
    return [
        *lines,
        ("memory", _bytes(d.memory_bytes)),
        ("rates", f"{measured}, for estimates: {', '.join(rates)}"),
    ]


def run_info(a: argparse.Namespace) -> int:
    name = device(a)
    context = _context.get(name)
    d, why, libraries = context.info, _why_not_cuda(context.info, a.device), _libraries(context)
    variants, path = _abi.lib.sat_variant_count(context.handle), cache.path(name)
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if a.json:
        print(
            json.dumps(
                {
                    "version": 1,
                    "sparse_autotune": sa.__version__,
                    "device": sa.device_info(name),
                    "cuda": {"used": why is None, "reason": why},
                    "libraries": libraries,
                    "variants": variants,
                    "cache": path,
                    "environment": environment,
                }
            )
        )
        return 0
    backend = "cuda" if d.backend == _abi.CUDA else "cpu"
    lines = [
        ("device", f"{d.name.decode()} ({backend}:{d.index})"),
        ("identity", d.identity.decode()),
        *_lines(d),
        *([("cuda", f"not used: {why}")] if why else []),
        ("libraries", ", ".join(libraries) or "none found"),
        ("variants", str(variants)),
        ("cache", path or "memory only"),
        *(("environment", f"{name}={value}") for name, value in environment.items()),
    ]
    print(f"sparse_autotune {sa.__version__}")
    for word, text in lines:
        print(f"  {word:<11} {text}")
    return 0


def run_doctor(a: argparse.Namespace) -> int:
    from . import _doctor  # which imports this module

    return _doctor.run(a)


RUN = {"tune": run_tune, "cache": run_cache, "info": run_info, "doctor": run_doctor}
