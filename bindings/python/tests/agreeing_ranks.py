"""Ranks that agree on variants, with torch and gloo:
`python agreeing_ranks.py FOLDER ROUNDS DEVICE WORLD [SEED]`.

WORLD processes a round, on a GPU all on the same one, each with a cache of its own: some are lost from round
to round, so that each knows other problems, by other races. They ask for the problems in different orders,
begin late, and in every other round one of them is killed, between two products or at any time. The store is
a process of its own, as torchrun's is the agent's. Prints what was found, as JSON. Forking comes before any
product: importing torch is what takes long."""

import datetime
import faulthandler
import json
import os
import random
import shutil
import signal
import sys
import time

import torch
import torch.distributed as dist

import sparse_autotune as sa

SIDES = [(24, 8), (40, 16), (56, 4), (72, 32), (88, 12)]  # rows in blocks of 4, columns
WAIT = 20.0  # no rank that lives takes as long


def multiply(rows, columns, device):
    """The variant that served, whether it was checked here, and the product's largest error."""
    torch.manual_seed(rows)
    kept = (torch.rand(rows, rows) < 0.5).repeat_interleave(4, 0).repeat_interleave(4, 1)
    dense = (torch.randn(4 * rows, 4 * rows) * kept).to(device)
    b = torch.randn(4 * rows, columns).to(device)
    matrix = sa.BsrMatrix.from_dense(dense, block=4)
    error = (matrix @ b - dense @ b).abs().max().item()
    (plan,) = matrix._pattern._first.values()
    info = plan.info()
    return info.variant.decode(), bool(info.verified), error


def be_rank(rank, world, port, folder, number, seed, dies, device):
    draw = random.Random(seed * 1000 + rank)
    os.environ["SPARSE_AUTOTUNE_CACHE"] = f"{folder}/cache{rank}"
    os.environ["SPARSE_AUTOTUNE"] = "quick"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=100))
    store = dist.PrefixStore(f"round{number}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    time.sleep(draw.random() * 0.1)
    sa.distributed.enable(wait=2.0 if number % 2 else WAIT)
    sides = draw.sample(SIDES, len(SIDES))
    after = draw.randrange(len(sides)) if dies == "between" else len(sides)
    if dies == "any time":
        signal.setitimer(signal.ITIMER_REAL, 1e-3 + draw.random() * 4)  # its signal ends the process
    found = {}
    for at, (rows, columns) in enumerate(sides):
        if at == after:
            os.kill(os.getpid(), signal.SIGKILL)
        found[rows] = multiply(rows, columns, device)
    with open(f"{folder}/found{rank}", "w") as file:
        json.dump(found, file)


def one_round(port, folder, number, draw, device, world):
    """What each rank that lived found."""
    victim, seed = draw.randrange(world) if number % 2 else -1, draw.randrange(1 << 30)
    how = ("", "between", "", "any time")[number % 4]
    for rank in range(world):
        if draw.random() < 0.5:
            shutil.rmtree(f"{folder}/cache{rank}", ignore_errors=True)
        if os.path.exists(f"{folder}/found{rank}"):
            os.remove(f"{folder}/found{rank}")
    children = {}
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.dump_traceback_later(250, exit=True)
                be_rank(rank, world, port, folder, number, seed, how if rank == victim else "", device)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children[child] = rank
    ended = {}
    while children:
        child, status = os.wait()
        ended[children.pop(child)] = status
    ranks = {}
    for rank, status in sorted(ended.items()):
        if rank != victim:
            assert status == 0, f"round {number}: rank {rank} ended with {status}"
            with open(f"{folder}/found{rank}") as file:
                ranks[rank] = json.load(file)
    return {"victim": victim, "ranks": ranks}


def serve():
    """The store's port, and its process: who forks must have no other threads, as a store has."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return int(os.read(read, 64)), child
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(write, str(store.port).encode())
    while True:
        time.sleep(60)


def main():
    folder, rounds, device, world = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    seed = int((*sys.argv, "1")[5])
    draw = random.Random(seed)
    port, child = serve()
    try:
        print(json.dumps([one_round(port, folder, number, draw, device, world) for number in range(rounds)]))
    finally:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
