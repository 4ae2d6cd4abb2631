"""Measures some problems of a grid; prints one JSON object a line. Started by runner.py, in an environment
that has the package and torch.

usage: measure.py GRID SEED SECONDS THREADS INDEX[,INDEX...] [INDEX:PEER ...]

INDEX:PEER leaves a peer out of a problem. Lines say what is begun (`begin`, `stage`), so that whoever reads
them knows what took the process down.
"""

import faulthandler
import gc
import json
import os
import platform
import sys
import time
import warnings

import draw
import timing

ROUNDS_SECONDS = {"cuda": 0.35, "cpu": 2.0}
TOO_FAR = 4.0  # a peer that must take so many times as long as ours is not tried
TOO_LONG = 0.3  # seconds of a peer that is timed once
HUNG_SECONDS = 75  # less than runner.py waits
USED = 0.5  # of the GPU's memory: another process does the rest


def say(**words):
    print(json.dumps(words), flush=True)


def first_line(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


class Measure:
    def __init__(self, grid, seed, threads):
        import torch

        import sparse_autotune as sa

        self.sa, self.torch, self.grid, self.seed = sa, torch, grid, seed
        self.cuda = grid.startswith("gpu")
        self.device = "cuda" if self.cuda else "cpu"
        torch.set_num_threads(threads)
        self.timer = timing.Gpu(torch) if self.cuda else timing.Cpu(threads)
        self.info = sa.device_info("cuda:0" if self.cuda else "cpu")
        say(machine=self.machine(threads))

    def machine(self, threads):
        import numpy

        torch = self.torch
        found = {
            "name": self.info["name"],
            "threads": threads,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "sparse_autotune": self.sa.__version__,
            "extension": self.sa._quick._fast is not None,
        }
        if self.cuda:
            found.update(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
        return found

    def one(self, index, without):
        begun = time.perf_counter()
        p = draw.problem(self.grid, self.seed, index)
        row = {"index": index, "problem": p.words(), "facts": draw.describe(p), "strata": p.strata()}
        self.torch.backends.cuda.matmul.allow_tf32 = getattr(p, "dtype", "") == "tf32"
        with self.timer.scope(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fill(row, p, without)
        row["took_seconds"] = round(time.perf_counter() - begun, 2)
        return row

    def fill(self, row, p, without):
        self.stage("ours")
        if self.grid.endswith("attention"):
            import attention as kind

            job = kind.Attention(p, self.grid, self.seed, self.device)
        else:
            import products as kind

            job = kind.Product(p, self.grid, self.seed, self.device)
        row["floor_seconds"] = self.floor(job)
        # ---- ours: tuned, right, and right again after its inputs have changed ----
        ours = again = None
        try:
            ours, again = self.ours(job, row)
        except Exception as error:
            self.survive()
            row["error"] = first_line(error)
        # ---- peers, one after the other; those that are far slower leave at once ----
        contenders, row["peers"] = [], {}
        peers = list(job.peers().items())
        while peers:
            name, make = peers.pop(0)
            found = without.get(name) or self.peer(job, name, make, ours, contenders)
            if isinstance(found, str):
                row["peers"][name] = {"refused": found}
            else:
                contenders.append(found)
            if not peers and not contenders and len(row["peers"]) == len(job.peers()):
                peers = list(job.last_peers().items())
        # ---- in turns ----
        self.stage("turns")
        fastest = min((c.seconds for c in contenders + [ours] * (ours is not None)), default=0.0)
        near = [c for c in contenders if c.seconds <= timing.FAR * fastest]
        near = near or sorted(contenders, key=lambda c: c.seconds)[:1]
        others = timing.Others()
        if ours is not None:
            turns = [c for c in near if c.seconds < TOO_LONG]
            self.timer.rounds([ours, again, *turns], ROUNDS_SECONDS[self.device])
            self.timer.eager([ours, *turns])
            row["others_share"] = others.share()
        for c in contenders:
            row["peers"][c.name] = c.record()
            if ours is not None:
                row["peers"][c.name]["ratio"] = timing.ratio(c, ours)
        self.judge(row, ours, again, near, job)

    def ours(self, job, row):
        begun, call = time.perf_counter(), job.ours()
        got = call()
        self.timer.settle()
        row["tuning_seconds"] = round(time.perf_counter() - begun, 3)
        row["variants"] = job.variants()
        errors = [e.excess(got) for e in job.expected()]
        errors += [e.excess(into) for into, expected in job.elsewhere() for e in expected]
        del got
        ours, again = timing.Contender("ours", call), timing.Contender("again", call)
        self.timer.ready(ours)
        self.timer.ready(again)
        job.change_values()
        errors += [e.excess(self.timer.replayed(ours)) for e in job.expected()]
        row["excess"] = round(max(errors), 4)  # of errors over their bounds
        if not max(errors) <= 1.0:
            raise ArithmeticError(f"wrong: an error is {max(errors):.3g} times its bound")
        return ours, again

    def peer(self, job, name, make, ours, others):
        """A contender, or why it is none."""
        least = job.least_seconds(name)
        if ours is not None and least > TOO_FAR * ours.seconds:
            return f"not tried: it takes at least {least:.2g} s"
        self.stage(name)
        try:
            call = make()
            got = call()
            self.timer.settle()
            excess = job.compare(self.expected_of(job), name, got)
            if not excess <= 1.0:
                return f"wrong: an error is {excess:.3g} times what peers may have"
            del got
            c = timing.Contender(name, call)
            self.timer.ready(c)
            if any(c.seconds > 8 * other.seconds for other in others):
                c.call = c.queue = c.result = None  # its memory
            return c
        except Exception as error:
            self.survive()
            return first_line(error)

    def expected_of(self, job):
        """With the operands as they are when peers are made."""
        if "expected" not in job.cached:
            job.cached["expected"] = job.expected()
        return job.cached["expected"]

    def judge(self, row, ours, again, near, job):
        """Only times of the same rounds decide."""
        best = min(near, key=lambda c: c.seconds, default=None)
        row.update(peer=best and best.name, peer_seconds=best and best.seconds)
        if ours is None:
            row.update(seconds=None, variant=None, ratio=None)
            return
        row.update(ours.record(), variant=" + ".join(job.variants()))
        if getattr(ours, "uncaptured", None):
            row["uncaptured"] = ours.uncaptured
        row["again_seconds"], row["again_ratio"] = again.seconds, timing.ratio(again, ours)
        row["ratio"] = timing.ratio(best, ours) if best else None

    def floor(self, job):
        """Operations at the dtype's rate, or all operands through memory once, by the library's rates."""
        operations, moved = job.work()
        dtype, info = job.p.dtype, self.info
        rate = info["tf32_rate"] if dtype == "tf32" else info["flop_rate"][dtype]
        beyond = max(0.0, moved - info["l2_bytes"]) if self.cuda else 0.0
        return max(operations / rate if rate else 0.0, beyond / info["memory_rate"])

    def stage(self, name):
        """Where it then stays silent for long, the log gets the stacks of all threads."""
        say(stage=name)
        faulthandler.dump_traceback_later(HUNG_SECONDS)

    def survive(self):
        """An error may have taken the device with it: then this process ends, and another one goes on."""
        if not self.cuda:
            return
        try:
            self.torch.cuda.synchronize()
        except Exception:
            os._exit(3)

    def full(self):
        if not self.cuda:
            return False
        self.torch.cuda.empty_cache()
        free, total = self.torch.cuda.mem_get_info()
        if free > (1 - USED) * total:
            return False
        gc.collect()
        self.torch.cuda.empty_cache()
        free, total = self.torch.cuda.mem_get_info()
        return free < (1 - USED) * total


def main():
    grid, seed, seconds, threads, indices = sys.argv[1:6]
    left_out = {}
    for word in sys.argv[6:]:
        index, _, name = word.partition(":")
        left_out.setdefault(int(index), {})[name] = "took the process down, or hung"
    end = time.monotonic() + float(seconds)
    say(stage="start")
    measure = Measure(grid, seed, int(threads))
    for index in map(int, indices.split(",")):
        if time.monotonic() > end or measure.full():
            break
        say(begin=index)
        say(row=measure.one(index, left_out.get(index, {})))


if __name__ == "__main__":
    main()
