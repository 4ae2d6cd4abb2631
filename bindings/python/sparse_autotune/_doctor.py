"""``python -m sparse_autotune doctor``: what is found, what is missing for more speed, and the remedy.

The command line's ``doctor`` (src/cli/doctor.c) in the same words, and what only a Python process has: the
OpenMP run times that torch and others bring along, and the fast path.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sparse_autotune as sa

from . import _abi, _commands, _context, _quick, cache

_SLOW_SECONDS = 0.05
_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_", "XDG_CACHE_HOME", "SPARSE_AUTOTUNE")
_KNOWN = {
    "",
    "_CACHE",
    "_DEVICE",
    "_FORCE",
    "_LOG",
    "_BLAS",
    "_MKL",
    "_CUBLAS",
    "_CUBLASLT",
    "_CUDNN",
    "_CUSPARSE",
}
_KNOWN |= {"_NVTX", "_DIR", "_LINK", "_CHECK_ONLY", "_CMAKE", "_LIBRARY"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "gpfs", "beegfs", "afs"}
_CUDA_LIBRARIES = {
    "cuBLAS": ("SPARSE_AUTOTUNE_CUBLAS", "nvidia-cublas"),
    "cuBLASLt": ("SPARSE_AUTOTUNE_CUBLASLT", "nvidia-cublas"),
    "cuSPARSE": ("SPARSE_AUTOTUNE_CUSPARSE", "nvidia-cusparse"),
    "cuDNN": ("SPARSE_AUTOTUNE_CUDNN", "nvidia-cudnn-cu13"),
}


@dataclass
class Finding:
    id: str
    level: str  # "broken": the exit status is 1; "slower"; "note"
    what: str
    remedy: str


@dataclass
class Disk:
    kind: str = "other"
    exists: bool = False
    others: str = ""  # who else may write there
    error: str = ""
    seconds: float = 0.0


@dataclass
class Found:
    name: str  # of the device
    asked: str | None
    broken: str = ""  # why the device that was asked for cannot be had
    libraries: list[str] = field(default_factory=list)
    no_cuda: str | None = None
    driver: str | None = None
    nvcc: str | None = None
    online: int = 1
    allowed: int = 1
    quota: float = 0.0
    openmp: list[str] = field(default_factory=list)
    disk: Disk = field(default_factory=Disk)

    @property
    def info(self) -> _abi.Device:
        return _context.get(self.name).info

    @property
    def on_cuda(self) -> bool:
        return self.info.backend == _abi.CUDA


# ---- what the machine has ----


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _quota() -> float:
    """The least quota of this process's cgroup and of those above it, in processors; 0: none."""
    found = []
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup")
        here = root / group.lstrip("/")
        for folder in (here, *here.parents):
            if controllers:
                words = [_text(folder / f"cpu.cfs_{word}_us") for word in ("quota", "period")]
            else:
                words = _text(folder / "cpu.max").split()
            with contextlib.suppress(ValueError, ZeroDivisionError):
                quota, period = map(float, words)
                found += [quota / period] if quota > 0 else []
            if folder == root:
                break
    return min(found, default=0.0)


def _openmp() -> list[str]:
    """The files of the OpenMP run times that this process has loaded."""
    paths = re.findall(r" (/\S*/(?:libgomp|libiomp5|libomp)[.-]\S*)$", _text("/proc/self/maps"), re.MULTILINE)
    return list(dict.fromkeys(paths))


def _driver() -> str | None:
    function = _context.driver_function("cuDriverGetVersion")
    if function is None:
        return None
    version = ctypes.c_int()
    function(ctypes.byref(version))
    module = re.search(r"Kernel Module\D*([\d.]+)", _text("/proc/driver/nvidia/version"))
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return f"{module[1]}, {cuda}" if module else cuda


def _nvcc() -> str | None:
    folders = [os.environ[name] + "/bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    compiler = os.environ.get("CUDACXX", "")
    if os.path.isabs(compiler) and os.access(compiler, os.X_OK):
        return compiler
    path = os.pathsep.join([*folders, os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    return shutil.which("nvcc", path=path)


def _kind(place: Path) -> str:
    """The file system that a folder is on: the longest mount point above it."""
    best, kind = "", "other"
    for line in _text("/proc/self/mounts").splitlines():
        words = line.split()
        if len(words) > 2 and len(words[1]) >= len(best):
            mount = words[1].replace("\\040", " ")
            if place == Path(mount) or Path(mount) in place.parents:
                best, kind = words[1], words[2]
    return kind


def _others(place: Path, exists: bool) -> str:
    """The library's rule in short: nobody but root and this user may write there, or in a folder above."""
    last = exists
    for folder in (place, *place.parents):
        info = folder.stat()
        group = info.st_mode & stat.S_IWGRP and info.st_gid not in (0, os.getegid())
        sticky = info.st_mode & stat.S_ISVTX and not last
        if info.st_uid not in (0, os.geteuid()):
            return f"{folder} belongs to user {info.st_uid}"
        if (info.st_mode & stat.S_IWOTH or group) and not sticky:
            return f"others may write {folder} (mode {stat.S_IMODE(info.st_mode):04o})"
        last = False
    return ""


def _disk(path: str) -> Disk:
    """Writes a small file there, as the cache does, and removes it."""
    folder = Path(path).absolute()
    found = Disk(exists=folder.exists())
    try:
        place = next(p for p in (folder, *folder.parents) if os.access(p, os.F_OK)).resolve()
        found.kind = _kind(place)
        found.others = _others(place, found.exists)
        if not place.is_dir():
            raise NotADirectoryError(20, os.strerror(20))
        if not os.access(place, os.W_OK | os.X_OK):
            read_only = os.statvfs(place).f_flag & os.ST_RDONLY
            raise OSError(0, "Read-only file system" if read_only else "Permission denied")
        if found.exists and not found.others:
            start = time.perf_counter()
            with tempfile.NamedTemporaryFile(dir=place, prefix="doctor-") as file:
                file.write(b"\n" * 4096)
                file.flush()
                os.fsync(file.fileno())
                found.seconds = time.perf_counter() - start
    except OSError as error:
        found.error = error.strerror or str(error)
    return found


def _look(a: argparse.Namespace) -> Found:
    broken = ""
    try:
        name = _commands.device(a)
        _context.get(name)
    except (sa.Error, ValueError) as error:
        name, broken = "cpu", str(error)
    f = Found(name, a.device, broken)
    context = _context.get(name)
    f.libraries = _commands._libraries(context)
    f.no_cuda = _commands._why_not_cuda(context.info, a.device)
    f.driver, f.nvcc = _driver(), _nvcc()
    f.online = os.cpu_count() or 1
    f.allowed = len(os.sched_getaffinity(0))
    f.quota = _quota()
    if cache.path(name):
        f.disk = _disk(cache.path(name))
    for module in ("torch", "scipy.linalg"):  # what a user of this package has beside it
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    f.openmp = _openmp()
    return f


# ---- what may be missing ----


def _gpu(f: Found) -> Iterator[Finding]:
    why = f.no_cuda or ""
    if f.on_cuda or f.broken or not f.driver or "it would work" in why:
        return
    if "without CUDA" in why:
        remedy = f"build again where nvcc is {f.nvcc}" if f.nvcc else "install a wheel with CUDA code"
        what = "an NVIDIA driver is here, and this build has no CUDA code"
        yield Finding("build_without_cuda", "slower", what, remedy)
    elif "this build needs" in why:
        yield Finding("old_driver", "slower", why, "a newer driver, or a build by an older CUDA")
    else:
        what = f"an NVIDIA driver is here, and no GPU is used: {why}"
        remedy = "nvidia-smi shows what the driver sees; CUDA_VISIBLE_DEVICES may hide it"
        yield Finding("gpu_not_used", "slower", what, remedy)


def _switched_off(*variables: str) -> bool:
    return any((value := os.environ.get(name)) and not value.startswith("/") for name in variables)


def _missing_libraries(f: Found) -> Iterator[Finding]:
    have = {text.split()[0] for text in f.libraries}
    if f.on_cuda:
        for name, (variable, package) in _CUDA_LIBRARIES.items():
            if name not in have and not _switched_off(variable):
                what = f"{name} is not found: its variants do not take part"
                remedy = f"pip install {package}, or set CUDA_HOME to a toolkit that has it"
                yield Finding("library", "slower", what, remedy)
    elif not have and not _switched_off("SPARSE_AUTOTUNE_BLAS", "SPARSE_AUTOTUNE_MKL"):
        what = "neither OpenBLAS nor MKL is found: their variants do not take part"
        yield Finding("library", "slower", what, "install libopenblas0, or pip install mkl")


def _threads(f: Found) -> Iterator[Finding]:
    threads, could = f.info.threads, f.allowed
    by_quota = 0 < f.quota < could
    could = math.ceil(f.quota) if by_quota else could
    if f.on_cuda:
        return
    if threads > could:
        shared = f"the {f.quota:g} processors of the cgroup's quota" if by_quota else f"{could} processors"
        remedy = f"OMP_NUM_THREADS={could}" + (", or a larger quota" if by_quota else "")
        yield Finding("threads", "slower", f"{threads} threads share {shared}", remedy)
    elif threads < could and (threads == 1 or 2 * threads < could):
        what = f"{threads} of {could} processors {'is' if threads == 1 else 'are'} used"
        if asked := os.environ.get("OMP_NUM_THREADS"):
            remedy = f"OMP_NUM_THREADS is {asked}: unset it, or say {could}"
        elif limit := os.environ.get("OMP_THREAD_LIMIT"):
            remedy = f"OMP_THREAD_LIMIT is {limit}: unset it"
        else:
            remedy = "more threads cannot be started: look at ulimit -u and the cgroup's pids.max"
        yield Finding("threads", "slower", what, remedy)
    if f.allowed < f.online and (f.allowed == 1 or 2 * f.allowed < f.online):
        what = f"this process may run on {f.allowed} of {f.online} processors"
        remedy = "start it without taskset, or ask the batch system for more processors"
        yield Finding("affinity", "slower", what, remedy)
    if 0 < 2 * f.quota < f.online:
        what = f"the cgroup has a quota of {f.quota:g} of {f.online} processors"
        yield Finding("quota", "slower", what, "give the container more (--cpus), or its job")


def _process(f: Found) -> Iterator[Finding]:
    if len(f.openmp) > 1:
        paths = " and ".join(f.openmp)
        what = f"{len(f.openmp)} OpenMP run times in one process, each with threads of its own: {paths}"
        remedy = "use packages that share one; OMP_WAIT_POLICY=passive lessens the harm"
        if any("iomp" in path for path in f.openmp):
            remedy = "MKL_THREADING_LAYER=GNU keeps MKL to GNU's"
        yield Finding("openmp", "slower", what, remedy)
    if _quick._fast is None:
        what = "the fast path was not built: each call costs more"
        yield Finding("fast_path", "slower", what, "install python3-dev and build the package again")


def _cache(f: Found) -> Iterator[Finding]:
    path, d, effort = cache.path(f.name), f.disk, sa.get_effort()
    first = f"SPARSE_AUTOTUNE_CACHE=FOLDER:{path}"
    if effort == "off" or (effort == "pinned" and path and not d.others):  # pinned writes nothing
        return
    if effort == "pinned":
        why = f", since {d.others}" if d.others else ""
        what = f"the effort is pinned, and no cache is read{why}: every problem is an error"
        remedy = "set SPARSE_AUTOTUNE_CACHE to the folder that has the winners"
        yield Finding("cache_pinned", "broken", what, remedy)
    elif not path:
        what = "results are kept in memory: every process races again"
        yield Finding("cache_in_memory", "slower", what, "set SPARSE_AUTOTUNE_CACHE to a folder of your own")
    elif d.others:
        what = f"the cache is not used, since {d.others}"
        remedy = "chmod go-w it, or set SPARSE_AUTOTUNE_CACHE to a folder of your own"
        yield Finding("cache_of_others", "slower", what, remedy)
    elif d.error and effort != "cached":
        what = f"the cache cannot be written ({path}: {d.error}): what is raced is forgotten"
        remedy = f"put a folder that can be written before it: {first}"
        yield Finding("cache_read_only", "slower", what, remedy)
    elif d.seconds > _SLOW_SECONDS:
        what = f"a small file takes {1e3 * d.seconds:.0f} ms to be on the cache's disk ({d.kind})"
        yield Finding("cache_slow", "slower", what, f"put a folder on a local disk before it: {first}")
    elif d.kind in _NETWORK or d.kind.startswith("fuse"):
        what = f"the cache is on a network disk ({d.kind}): each new key waits for it"
        yield Finding("cache_on_network", "note", what, f"a local folder may come before it: {first}")
    elif d.kind in ("tmpfs", "ramfs"):
        what = f"the cache is on {d.kind}: it is lost when the machine restarts"
        yield Finding("cache_on_tmpfs", "note", what, "set SPARSE_AUTOTUNE_CACHE to a folder on a disk")


def _environment(f: Found) -> Iterator[Finding]:
    ignored = _context.get(f.name).ignored()
    log, force = (os.environ.get(f"SPARSE_AUTOTUNE_{name}") for name in ("LOG", "FORCE"))
    if ignored:
        yield Finding("ignored", "slower", ignored, "correct it, or unset it")
    if log and log.lower() not in ("error", "warn", "info", "debug"):
        what = f"SPARSE_AUTOTUNE_LOG is {log!r}, which counts as warn"
        yield Finding("ignored", "note", what, "say error, warn, info or debug")
    for name in os.environ:
        if name.upper().startswith("SPARSE_AUTOTUNE") and (
            not name.startswith("SPARSE_AUTOTUNE") or name.removeprefix("SPARSE_AUTOTUNE") not in _KNOWN
        ):
            what = f"{name} is no variable of this library: it is ignored"
            yield Finding("ignored", "note", what, "unset it, or correct its name; the README lists them")
    if force and force not in ignored:
        what = f"SPARSE_AUTOTUNE_FORCE is {force!r}: that variant is used wherever it fits"
        yield Finding("forced", "note", what, "unset it for the fastest one")
    if sa.get_effort() == "off":
        what = "the effort is off: nothing is raced, and the cache is not read"
        yield Finding("effort", "slower", what, "SPARSE_AUTOTUNE=cached reads the cache and races nothing")


def _findings(f: Found) -> list[Finding]:
    found = []
    if f.broken:
        remedy = "leave --device out" if f.asked else "unset SPARSE_AUTOTUNE_DEVICE, or correct it"
        found.append(Finding("device", "broken", f.broken, remedy))
    for check in (_gpu, _missing_libraries, _threads, _process, _cache, _environment):
        found += check(f)
    return found


# ---- printing ----


def _versions() -> dict[str, str]:
    """Of the packages beside this one."""
    found = {}
    for name in ("numpy", "torch", "scipy", "cupy"):
        with contextlib.suppress(Exception):
            found[name] = importlib.import_module(name).__version__
    return found


def _as_json(f: Found, found: list[Finding], environment: dict[str, str]) -> dict[str, Any]:
    d, path = f.info, cache.path(f.name)
    return {
        "version": 1,
        "sparse_autotune": sa.__version__,
        "device": {
            "backend": "cuda" if f.on_cuda else "cpu",
            "name": d.name.decode(),
            "index": d.index,
            "isa": _commands.isa(d),
            "threads": d.threads,
            "multiprocessors": d.multiprocessors,
        },
        "processors": {"online": f.online, "allowed": f.allowed, "quota": f.quota or None},
        "openmp": f.openmp,
        "libraries": f.libraries,
        "driver": f.driver,
        "nvcc": f.nvcc,
        "cuda": {"used": f.on_cuda, "reason": f.no_cuda},
        "cache": {
            "path": path,
            "disk": f.disk.kind if path else None,
            "writable": bool(path) and not f.disk.error and not f.disk.others,
            "write_seconds": f.disk.seconds or None,
        },
        "effort": sa.get_effort(),
        "environment": environment,
        "packages": _versions(),
        "findings": [asdict(one) for one in found],
    }


def run(a: argparse.Namespace) -> int:
    f = _look(a)
    found = _findings(f)
    environment = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    code = 1 if any(one.level == "broken" for one in found) else 0
    if a.json:
        print(json.dumps(_as_json(f, found, environment)))
        return code
    d, path = f.info, cache.path(f.name)
    state = (
        "not used"
        if f.disk.others
        else "cannot be written"
        if f.disk.error
        else "can be written"
        if f.disk.exists
        else "not made yet"
    )
    quota = f", a quota of {f.quota:g}" if f.quota else ""
    threads = f"{d.threads}; {f.allowed} of {f.online} processors allowed{quota}"
    lines = [
        ("device", f"{d.name.decode()} ({'cuda' if f.on_cuda else 'cpu'}:{d.index})"),
        *(
            []
            if f.on_cuda
            else [("isa", _commands.isa(d) or "none beyond the compiler's default"), ("threads", threads)]
        ),
        *(("openmp", one) for one in f.openmp),
        ("libraries", ", ".join(f.libraries) or "none found"),
        ("packages", ", ".join(f"{name} {version}" for name, version in _versions().items())),
        ("driver", f.driver or "none"),
        ("nvcc", f.nvcc or "none"),
        *([("cuda", f"not used: {f.no_cuda}")] if f.no_cuda else []),
        ("cache", f"{path} ({f.disk.kind}; {state})" if path else "memory only"),
        ("effort", sa.get_effort()),
        *(("environment", f"{name}={value}") for name, value in environment.items()),
    ]
    print(f"sparse_autotune {sa.__version__}")
    for word, text in lines:
        print(f"  {word:<11} {text}")
    for one in found:
        print(f"{one.level:<8}  {one.what}. Remedy: {one.remedy}")
    if not found:
        print("nothing is missing")
    return code
