"""Ranks that agree on variants, through the stores of torch.distributed."""

import os
import subprocess
import sys

import pytest

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
