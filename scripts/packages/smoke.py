"""What a fresh environment must be able to do with a wheel: a product and attention that are right, the
programs of the package, and one OpenMP run time in the process, whoever was imported first.

usage: smoke.py [--torch] [--no-scipy]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WITH_TORCH = "--torch" in sys.argv
FOLDER = Path(tempfile.mkdtemp())
os.environ |= {"SPARSE_AUTOTUNE_CACHE": str(FOLDER / "cache"), "SPARSE_AUTOTUNE_DEVICE": "cpu"}

PRODUCT = """
import numpy as np, sparse_autotune as sa
from sparse_autotune import _fast
rng = np.random.default_rng(1)
dense = rng.standard_normal((96, 64), np.float32)
A = sa.BsrMatrix.from_dense(dense, block=16, keep=0.5)
B = rng.standard_normal((64, 8), np.float32)
assert np.allclose(A @ B, A.to_dense() @ B, atol=1e-4)
q, k, v = rng.standard_normal((3, 1, 2, 32, 16), np.float32)
s = np.exp(q @ k.swapaxes(-1, -2) / 4)
assert np.allclose(sa.attention(q, k, v), s / s.sum(-1, keepdims=True) @ v, atol=1e-4)
"""

TORCH = """
import torch
A = sa.BsrMatrix.from_dense(torch.randn(64, 64), block=16, keep=0.25)
B = torch.randn(64, 8, requires_grad=True)
(A @ B).sum().backward()
assert torch.allclose(B.grad, A.to_dense().T.sum(1, keepdim=True).expand(64, 8), atol=1e-4)
layer = sa.SparseLinear(64, 64, block=16, density=0.25)
layer(B.T).sum().backward()
"""

ONE_OPENMP = """
maps = open("/proc/self/maps").read().split()
openmp = {word for word in maps if word.rpartition("/")[2].startswith(("libgomp", "libomp", "libiomp5"))}
assert len(openmp) == 1, openmp
"""


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=FOLDER)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    if WITH_TORCH:
        run("-c", PRODUCT + TORCH + ONE_OPENMP)
        run(
            "-c",
            "import torch; torch.randn(200, 200) @ torch.randn(200, 200)\n" + PRODUCT + TORCH + ONE_OPENMP,
        )
    else:
        absent = ["torch"] + ["scipy"] * ("--no-scipy" in sys.argv)
        run("-c", f"import importlib.util as u\nassert not [m for m in {absent} if u.find_spec(m)]")
        run("-c", PRODUCT + ONE_OPENMP)
    module = ("-m", "sparse_autotune")
    doctor = json.loads(run(*module, "doctor", "--json"))
    found = {one["id"] for one in doctor["findings"]}
    assert not found & {"fast_path", "openmp"}, doctor
    run(*module, "info")
    run(*module, "race", "--size", "64x16x64", "--block", "16", "-o", "race.json")
    run(*module, "report", "race.json", "-o", "report.html")
    assert "</html>" in (FOLDER / "report.html").read_text()
    packages = ", ".join(f"{name} {version}" for name, version in doctor["packages"].items())
    print(f"Python {sys.version.split()[0]}, {packages}")


main()
