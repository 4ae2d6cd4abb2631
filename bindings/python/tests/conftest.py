"""What the tests share: a cache of their own, effort off unless a test asks for more, and makers of random
problems."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# Before the library makes its first context.
os.environ["SPARSE_AUTOTUNE_CACHE"] = tempfile.mkdtemp(prefix="sparse_autotune_test_")
atexit.register(shutil.rmtree, os.environ["SPARSE_AUTOTUNE_CACHE"], ignore_errors=True)
os.environ.pop("SPARSE_AUTOTUNE", None)
# torch has an OpenMP of its own, and two that spin are slow on few cores
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# else inductor compiles half a minute of probes for vector instructions
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of a GPU's memory
# Some virtual machines have AMX and do not describe its tiles (CPUID leaf 0x1d): there torch's own bf16
# products, by oneDNN, end the process with an illegal instruction. What is compared with them needs no AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import sparse_autotune as sa

EXAMPLES = int(os.environ.get("SAT_EXAMPLES", "60"))
settings.register_profile(
    "here",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("here")

try:
    import torch
except ImportError:
    torch = None

HAVE_CUDA = torch is not None and torch.cuda.is_available()


def pytest_collection_modifyitems(items):
    for item in items:
        if "cuda" in item.keywords and not HAVE_CUDA:
            item.add_marker(pytest.mark.skip(reason="there is no GPU that torch can use"))


@pytest.fixture(autouse=True)
def effort_off():
    with sa.set_effort("off"):
        yield


@pytest.fixture(autouse=True)
def forget_compiled():
    """torch.compile keeps a few graphs for each code object, and nn.Sequential has one for all tests
    together."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return request.param


def run_program(text, *words, **environment):
    """In a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", text, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def run_ranks(folder, *jobs):
    """Jobs of sharded_ranks.py, each on several processes; raises what their ranks raised."""
    program = str(Path(__file__).with_name("sharded_ranks.py"))
    environment = {**os.environ, "SPARSE_AUTOTUNE": "off", "OMP_NUM_THREADS": "1"}
    words = {"capture_output": True, "text": True, "env": environment}
    run = subprocess.run([sys.executable, "-W", "ignore", program, str(folder), *jobs], **words)
    assert run.returncode == 0, run.stdout + run.stderr
    answers = json.loads(run.stdout.splitlines()[-1])
    assert list(answers) == list(jobs)
    wrong = {job: answer["error"] for job, answer in answers.items() if answer["error"]}
    assert not wrong, "\n".join(f"{job}: {error}" for job, error in wrong.items())


def agreeing_ranks(folder, rounds, device="cpu", world=8, seed=1):
    """Rounds of agreeing_ranks.py: no hang, no divergence, and every survivor is right."""
    program = str(Path(__file__).with_name("agreeing_ranks.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("SPARSE_AUTOTUNE_LOG", None)
    words = {"capture_output": True, "text": True, "env": environment}
    command = [sys.executable, "-W", "ignore", program, str(folder)]
    run = subprocess.run([*command, str(rounds), device, str(world), str(seed)], **words)
    assert run.returncode == 0, f"seed {seed}: {run.stdout}{run.stderr}"
    found = json.loads(run.stdout.splitlines()[-1])
    assert len(found) == rounds
    for number, round in enumerate(found):
        ranks = round["ranks"]
        assert len(ranks) == world - number % 2
        for rank, products in ranks.items():
            assert len(products) == 5
            for rows, (variant, verified, error) in products.items():
                told = f"seed {seed}, round {number}, rank {rank}, {rows} block rows: {variant}"
                assert variant == next(iter(ranks.values()))[rows][0], told
                assert verified and error < 1e-4, told


def in_threads(count, work):
    """work(number), in so many threads at once."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def random_bsr(seed, rows, cols, block, density, dtype=np.float32):
    """Parts of a random matrix, its padding filled with NaN, and the dense matrix that they mean."""
    rng = np.random.default_rng(seed)
    br, bc = block
    gr, gc = -(-rows // br), -(-cols // bc)
    mask = rng.random((gr, gc)) < density
    at = np.argwhere(mask)
    row_ptr = np.concatenate(([0], np.cumsum(mask.sum(1)))).astype(np.int32)
    values = rng.standard_normal((len(at), br, bc)).astype(dtype)
    dense = np.zeros((gr * br, gc * bc), dtype)
    for v, (i, j) in zip(values, at):
        dense[i * br : (i + 1) * br, j * bc : (j + 1) * bc] = v
        v[max(0, min(br, rows - i * br)) :, :] = np.nan
        v[:, max(0, min(bc, cols - j * bc)) :] = np.nan
    return row_ptr, at[:, 1].astype(np.int32), values, np.ascontiguousarray(dense[:rows, :cols])


TOLERANCE = {"float64": 1e-10, "float32": 2e-4, "float16": 4e-2, "bfloat16": 2e-1}


class OnlyDlpack:
    """An array that offers nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def close(got, expected, dtype="float32"):
    tolerance = TOLERANCE[str(dtype).removeprefix("torch.")]
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=tolerance
    )


def tensors(seed, rows, cols, block, density, dtype, device="cpu"):
    """A random matrix of torch values, and the dense tensor that it means."""
    row_ptr, col_idx, values, dense = random_bsr(seed, rows, cols, block, density, np.float64)
    matrix = sa.BsrMatrix(row_ptr, col_idx, torch.tensor(values).to(device, dtype), (rows, cols))
    return matrix, torch.tensor(dense).to(device, dtype)


def matrix(size=16, block=4):
    """A square one of random torch values, and what it means."""
    a = sa.BsrMatrix.from_dense(torch.randn(size, size), block=block)
    return a, a.to_dense()


def tensors_close(got, expected):
    tolerance = TOLERANCE[str(got.dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance)
