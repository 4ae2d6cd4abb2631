#!/usr/bin/env python3
"""Compares the machine code of the CUDA kernels of two trees: what is renamed or moved must stay the same.

usage: compare_device_code.py NVCC OLD_TREE NEW_TREE [name.cu ...]

Every .cu file is compiled for one architecture (ARCH, sm_90a unless set) in both trees. Files are matched
by name, kernels by their machine code alone, since their symbols carry names that may have changed. Needs no
GPU. Results are kept by content in the folder CUBINS (a temporary one unless set), so that a second run
compiles only what has changed.
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
        for name, pair in jobs.items():
            if None in pair:
                different += 1
                print(f"{name}: only in {trees[0] if pair[0] else trees[1]}", flush=True)
                continue
            try:
                old, new = (kernels(job.result()) for job in pair)
            except subprocess.CalledProcessError as error:
                different += 1
                print(f"{name}: does not compile: {(error.stderr or b'').decode()[:400]}", flush=True)
                continue
            gone, added = old - new, new - old
            different += bool(gone or added)
            state = f"{gone.total()} gone, {added.total()} new" if gone or added else "the same"
            print(f"{name}: {old.total()} functions, {state}", flush=True)
    print(f"{len(wanted)} files, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
