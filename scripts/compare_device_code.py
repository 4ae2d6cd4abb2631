#!/usr/bin/env python3
"""Compares the machine code of the CUDA kernels of two trees: what is renamed or moved must stay the same.

usage: compare_device_code.py NVCC OLD_TREE NEW_TREE [name.cu ...]

Every .cu file is compiled for one architecture (ARCH, sm_90a unless set) in both trees. Files are matched
by name, kernels by their machine code alone, since their symbols carry names that may have changed; one that
moved to another of the files is no difference. Needs no GPU. Results are kept by content in the folder
CUBINS (a temporary one unless set), so that a second run compiles only what has changed.
"""

import collections
import concurrent.futures
import hashlib
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading

ARCH = os.environ.get("ARCH", "sm_90a")
FLAGS = [
    "-cubin",
    "-arch=" + ARCH,
    "-O3",
    "-std=c++20",
    "--expt-relaxed-constexpr",
    "-DSAT_HAVE_CUDA",
    "-Iinclude",
    "-Isrc",
]

NONE = collections.Counter()


def sources(tree):
    return {path.name: path for path in sorted(tree.glob("src/**/*.cu"))}


def cubin(nvcc, tree, path, folder):
    """Compiles a file; its preprocessed text is the key under which the result is kept."""
    relative = str(path.relative_to(tree))
    text = subprocess.run(
        [nvcc, "-E", *FLAGS[1:], relative], cwd=tree, check=True, capture_output=True
    ).stdout
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    out = folder / (hashlib.sha256(ARCH.encode() + b"\n".join(lines)).hexdigest()[:24] + ".cubin")
    if not out.exists():
        part = out.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        subprocess.run([nvcc, *FLAGS, relative, "-o", str(part)], cwd=tree, check=True, capture_output=True)
        part.rename(out)
    return out


def kernels(path):
    """Hash of the instructions of each function of a cubin, a 64-bit ELF file -> how many have them."""
    data = path.read_bytes()
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    names = headers[names_index][4]
    found = collections.Counter()
    for header in headers:
        start = names + header[0]
        name = data[start : data.index(b"\0", start)].decode()
        if name.startswith(".text."):
            code = data[header[4] : header[4] + header[5]]
            found[hashlib.sha256(code).hexdigest()] += 1
    return found


def functions(job):
    """Those of a file; none where a tree has no such file; None where it does not compile."""
    try:
        return kernels(job.result()) if job else NONE
    except subprocess.CalledProcessError as error:
        print((error.stderr or b"").decode()[:400], flush=True)
        return None


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    nvcc = os.path.abspath(sys.argv[1])
    trees = [pathlib.Path(p).resolve() for p in sys.argv[2:4]]
    files = [sources(tree) for tree in trees]
    wanted = sys.argv[4:] or sorted(files[0].keys() | files[1].keys())
    folder = pathlib.Path(os.environ.get("CUBINS") or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    different = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            name: [
                pool.submit(cubin, nvcc, t, f[name], folder) if name in f else None
                for t, f in zip(trees, files)
            ]
            for name in wanted
        }
        code = {name: [functions(job) for job in pair] for name, pair in jobs.items()}
    everywhere = [sum((pair[i] or NONE for pair in code.values()), NONE) for i in range(2)]
    for name, (old, new) in code.items():
        if old is None or new is None:
            different += 1
            print(f"{name}: does not compile", flush=True)
            continue
        gone, added = old - new, new - old
        moved = sum(n for f, n in gone.items() if f in everywhere[1])
        moved_here = sum(n for f, n in added.items() if f in everywhere[0])
        lost, unknown = gone.total() - moved, added.total() - moved_here
        different += bool(lost or unknown)
        state = f"{lost} gone, {unknown} new" if lost or unknown else "the same"
        if moved or moved_here:
            state += f"; {moved} are in another file now, {moved_here} were in one"
        print(f"{name}: {old.total()} functions, {state}", flush=True)
    print(f"{len(wanted)} files, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
