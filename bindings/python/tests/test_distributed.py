"""Ranks that agree on variants, through the stores of torch.distributed."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from conftest import agreeing_ranks, run_program

import sparse_autotune as sa

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

RANK = """
import hashlib, sys, time
import torch
import sparse_autotune as sa

rank, world, store, cache, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
torch.set_num_threads(1)
if how == "group":
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    sa.distributed.enable(wait=30)
else:
    sa.distributed.enable(store=torch.distributed.FileStore(store, world), rank=rank, world=world, wait=30)
sizes = [(24, 8), (40, 16), (56, 4), (72, 32)]
for at in range(len(sizes)):
    n, block = sizes[(at + rank) % len(sizes) if how == "shuffled" else at]
    torch.manual_seed(n)
    kept = (torch.rand(n, n) < 0.5).repeat_interleave(4, 0).repeat_interleave(4, 1)
    matrix = sa.BsrMatrix.from_dense(torch.randn(4 * n, 4 * n) * kept, block=4)
    y = matrix @ torch.randn(4 * n, block)
    print("result", n, hashlib.sha256(y.numpy().tobytes()).hexdigest(), flush=True)
time.sleep(0.3)
"""


def run_ranks(tmp_path, job, how, world=2):
    """What each rank printed: results by size, and the sizes that it raced."""
    environment = {**os.environ, "SPARSE_AUTOTUNE_LOG": "info", "SPARSE_AUTOTUNE": "quick"}
    processes = []
    for rank in range(world):
        environment["SPARSE_AUTOTUNE_CACHE"] = str(tmp_path / f"cache{rank}")
        words = [str(rank), str(world), str(tmp_path / f"store{job}"), "-", how]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment.copy(),
            )
        )
    found = []
    for process in processes:
        out, log = process.communicate(timeout=240)
        assert process.returncode == 0, log
        results = dict(line.split()[1:3] for line in out.splitlines() if line.startswith("result"))
        raced = [line.split(" m=")[1].split()[0] for line in log.splitlines() if " raced " in line]
        found.append((results, raced))
    return found


def test_each_problem_is_raced_by_one_rank_and_a_second_job_races_none(tmp_path):
    first = run_ranks(tmp_path, 0, "group")
    results = [found[0] for found in first]
    assert len(results[0]) == 4 and results[0] == results[1]
    raced = sorted(size for _, sizes in first for size in sizes)
    assert raced == sorted({"96", "160", "224", "288"})
    second = run_ranks(tmp_path, 1, "shuffled")  # without a process group, in any order
    assert [found[0] for found in second] == results
    assert [found[1] for found in second] == [[], []]


def test_without_a_process_group_it_says_what_is_missing():
    with pytest.raises(RuntimeError, match="init_process_group first, or give store"):
        sa.distributed.enable()
    with pytest.raises(ValueError, match="wait is 0"):
        sa.distributed.enable(wait=0)


# ---- ranks that come late, die or ask in other orders ----


def test_ranks_agree_whatever_they_know_and_whoever_dies(tmp_path):
    agreeing_ranks(tmp_path, 2)


STOPPED = """
import os, signal, sys, time
import torch
import sparse_autotune as sa

rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
store = torch.distributed.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
sa.distributed.enable(store=store, rank=rank, world=2, wait=1)
A = sa.BsrMatrix.from_dense(torch.randn(32, 32), block=4)
if rank == 0:
    print("here", flush=True)
    sys.stdin.readline()
A @ torch.randn(32, 4)
print("joined", flush=True)
sys.stdin.readline()
for columns in (8, 16):
    B = torch.randn(32, columns)
    torch.testing.assert_close(A @ B, A.to_dense() @ B)
print("done", flush=True)
"""


def test_a_store_whose_process_is_stopped_holds_nobody_up(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "SPARSE_AUTOTUNE": "quick", "SPARSE_AUTOTUNE_CACHE": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = []
    try:
        for rank in (0, 1):
            words = [sys.executable, "-c", STOPPED, str(rank), str(port)]
            ranks.append(subprocess.Popen(words, text=True, env=environment, **pipes))
            assert ranks[rank].stdout.readline() == ("here\n" if rank == 0 else "joined\n")
        ranks[0].send_signal(signal.SIGSTOP)
        out, log = ranks[1].communicate("\n", timeout=200)
        assert ranks[1].returncode == 0 and out == "done\n", log
        assert "did not answer within 1 s" in log
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


HELD = """
import os, signal, sys
import torch
import sparse_autotune as sa

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)


class Store(torch.distributed.Store):
    def __init__(self):
        super().__init__()
        self.files = torch.distributed.FileStore(folder + "/store", 2)

    def check(self, keys):
        return self.files.check(keys)

    def get(self, key):
        return self.files.get(key)

    def compare_set(self, key, expected, desired):
        answers = key.split("/")[2:] == [key[-16:]]
        if rank == 1 and answers:  # what no race and no estimate would choose
            desired = "cpu_matmul_any_any_c_reference"
        found = self.files.compare_set(key, expected, desired)
        if rank == 0 and key.endswith("/claim"):
            print("claimed by", found.decode(), flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return found


sa.distributed.enable(store=Store(), rank=rank, world=2, wait=1)
torch.manual_seed(0)
A, B = sa.BsrMatrix.from_dense(torch.randn(32, 32), block=4), torch.randn(32, 4)
torch.testing.assert_close(A @ B, A.to_dense() @ B)
(plan,) = A._pattern._first.values()
print(plan.info().variant.decode(), flush=True)
"""


def test_a_rank_that_is_held_up_after_its_claim_takes_what_was_agreed_on_meanwhile(tmp_path):
    environment = {**os.environ, "SPARSE_AUTOTUNE": "quick", "SPARSE_AUTOTUNE_CACHE": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = []
    try:
        for rank in (0, 1):
            words = [sys.executable, "-c", HELD, str(rank), str(tmp_path)]
            ranks.append(subprocess.Popen(words, text=True, env=environment, **pipes))
            if rank == 0:
                assert ranks[0].stdout.readline() == "claimed by 0\n"
        out, log = ranks[1].communicate(timeout=200)
        assert ranks[1].returncode == 0 and out == "cpu_matmul_any_any_c_reference\n", out + log
        ranks[0].send_signal(signal.SIGCONT)
        late, log = ranks[0].communicate(timeout=200)
        assert ranks[0].returncode == 0 and late == out, late + log
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


# ---- pinned choices ----

PINNED = """
import hashlib, sys
import numpy as np
import sparse_autotune as sa

rng = np.random.default_rng(0)
A = sa.BsrMatrix.from_dense(rng.standard_normal((128, 128)).astype(np.float32), block=8, keep=0.5)
y = A @ rng.standard_normal((128, 24)).astype(np.float32)
(plan,) = A._pattern._first.values()
print(plan.info().variant.decode(), plan.info().tuned, hashlib.sha256(y.tobytes()).hexdigest())
"""


def test_pinned_choices_give_the_same_bits_in_every_process(tmp_path):
    def run(effort, cache, code=0):
        done = run_program(PINNED, SPARSE_AUTOTUNE=effort, SPARSE_AUTOTUNE_CACHE=cache, OMP_NUM_THREADS="1")
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.split() if code == 0 else done.stderr

    shipped = str(tmp_path / "shipped")
    assert "nothing is pinned for op=matmul m=128 n=24 k=128" in run("pinned", shipped, code=1)
    variant, tuned, digest = run("quick", shipped)
    assert tuned == "True"
    for number in range(3):  # caches of their own before the one that is shipped
        own = f"{tmp_path / str(number)}:{shipped}"
        assert run("pinned", own) == [variant, "False", digest]
