#!/usr/bin/env python3
"""What PyTorch does with the same problems on the same GPU: its Triton BSR kernel, tuned by search, and dense
products.

usage: rivals.py compile JOBS.json DONE SECONDS    fills Triton's cache, many processes at once; DONE gets a
line for each
       rivals.py measure JOBS.json DONE SECONDS    prints one JSON object a line
Times are of kernels alone: CUDA graphs of ten or more calls, medians of replays, with pauses between them,
just as bench_gpu takes ours.
"""

import json
import multiprocessing
import os
import statistics
import sys
import time

SHARED_BYTES = 227 * 1024
PAUSE_SECONDS = 0.003


def configurations(job):
    """Meta parameters to search, the likeliest first: tile widths, warps, stages, and rows that share a
    group."""
    n, block = job["n"], job["block"]
    widths = [w for w in (128, 256, 64, 512) if n % w == 0] if n > 64 else [w for w in (n, n // 2) if w >= 16]
    found = []
    for stages in (3, 4, 5, 2):
        for width in widths:
            for warps in (4, 8) if n > 64 else (4, 2, 1):
                if width == 512 and (block > 32 or stages != 3):
                    continue
                if width == 64 and n > 64 and (warps != 4 or stages not in (3, 4)):
                    continue
                if (stages - 1) * (block * block + block * width) * 2 <= SHARED_BYTES:
                    found.append(
                        {"SPLIT_N": n // width, "GROUP_SIZE_ROW": 4, "num_warps": warps, "num_stages": stages}
                    )
    for group in (1, 8):
        found += [
            dict(c, GROUP_SIZE_ROW=group)
            for c in found
            if c["GROUP_SIZE_ROW"] == 4 and c["num_stages"] == 3 and c["num_warps"] == 4
        ][:2]
    return found[: job["search"]]


def kernel_key(job, meta):
    """What a compiled kernel depends on."""
    return [
        job["dtype"],
        job["block"],
        job["n"],
        *(meta[k] for k in ("SPLIT_N", "GROUP_SIZE_ROW", "num_warps", "num_stages")),
    ]


def read_pattern(path, block):
    with open(path) as f:
        f.readline()
        rows, cols, _ = map(int, f.readline().split())
        pointers, columns = [0] * (rows // block + 1), []
        for line in f:
            r, c = map(int, line.split())
            pointers[(r - 1) // block + 1] += 1
            columns.append((c - 1) // block)
    for i in range(rows // block):
        pointers[i + 1] += pointers[i]
    return rows, cols, pointers, columns


class Bench:
    def __init__(self):
        import torch

        self.torch = torch
        self.kinds = {
            "f16": torch.float16,
            "bf16": torch.bfloat16,
            "f32": torch.float32,
            "f64": torch.float64,
        }
        torch.manual_seed(1)
        self.products = {}

    def dense(self, rows, cols, dtype):
        return (self.torch.rand(rows, cols, device="cuda", dtype=self.torch.float32) * 2 - 1).to(
            self.kinds[dtype]
        )

    def bsr(self, job):
        torch, block = self.torch, job["block"]
        rows, cols, pointers, columns = read_pattern(job["matrix"], block)
        values = self.dense(len(columns) * block, block, job["dtype"]).view(len(columns), block, block)
        index = {"device": "cuda", "dtype": torch.int32}
        return torch.sparse_bsr_tensor(
            torch.tensor(pointers, **index), torch.tensor(columns, **index), values, (rows, cols)
        )

    def triton_call(self, bsr, b, out, meta):
        from torch.sparse._triton_ops import bsr_dense_addmm

        return lambda: bsr_dense_addmm(out, bsr, b, beta=0, alpha=1, out=out, meta=dict(meta))

    # ---- timing ----

    def pair(self, queue):
        """Seconds of one `queue`, behind another one that hides the host's time."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        queue()
        begin.record()
        queue()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    def seconds(self, call, replays):
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = self.capture(call, 10)
        once = min(self.pair(graph.replay) for _ in range(2)) / 10
        calls = min(100, max(10, int(1e-3 / once)))
        if calls > 10:
            graph = self.capture(call, calls)
            graph.replay()
        times = []
        for _ in range(replays):
            time.sleep(PAUSE_SECONDS)
            times.append(self.pair(graph.replay) / calls)
        return statistics.median(times)

    def capture(self, call, calls):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    # ---- rivals ----

    def triton(self, job, done):
        """The best of the configurations whose kernels are compiled; a few even if none is."""
        torch = self.torch
        bsr, b = self.bsr(job), self.dense(job["k"], job["n"], job["dtype"])
        out = torch.empty(job["m"], job["n"], device="cuda", dtype=b.dtype)
        every = configurations(job)
        ready = [c for c in every if tuple(kernel_key(job, c)) in done] or every[:3]
        timed, failed = [], []
        for meta in ready:
            try:
                timed.append((self.seconds(self.triton_call(bsr, b, out, meta), 3), meta))
            except Exception as error:  # too much shared memory, or a compiler's refusal
                failed.append(str(error).splitlines()[0][:120])
        if not timed:
            return {"seconds": None, "message": failed[0] if failed else "no configuration"}
        timed.sort(key=lambda x: x[0])
        timed = sorted(
            ((self.seconds(self.triton_call(bsr, b, out, meta), 15), meta) for _, meta in timed[:3]),
            key=lambda x: x[0],
        )
        seconds, meta = timed[0]
        self.triton_call(bsr, b, out, meta)()
        expected = bsr.to_dense().float() @ b.float()
        error = ((out.float() - expected).abs().max() / expected.abs().max()).item()
        return {
            "seconds": seconds,
            "configuration": meta,
            "tried": len(ready),
            "of": len(every),
            "failed": len(failed),
            "error": error,
        }

    def product(self, job):
        """One time for all rows that have the same dense product: else each would have its own share of
        luck."""
        key = tuple(job[name] for name in ("m", "n", "k", "dtype", "tf32", "transpose", "layout"))
        if key not in self.products:
            self.products[key] = self.measure_product(job)
        return self.products[key]

    def measure_product(self, job):
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = bool(job["tf32"])
        m, n, k, dtype = (job[name] for name in ("m", "n", "k", "dtype"))
        columns = [order == "col" for order in job["layout"].split(",")]
        a = self.dense(k, m, dtype).t() if job["transpose"] else self.dense(m, k, dtype)
        b = self.dense(n, k, dtype).t() if columns[0] else self.dense(k, n, dtype)
        out = (
            torch.empty(n, m, device="cuda", dtype=a.dtype).t()
            if columns[1]
            else torch.empty(m, n, device="cuda", dtype=a.dtype)
        )
        return {"seconds": self.seconds(lambda: torch.mm(a, b, out=out), 15)}

    def copy_rate(self):
        torch = self.torch
        x = torch.rand(1 << 29, device="cuda")  # 2 GiB: what does not fit a cache many times over
        y = torch.empty_like(x)
        y.copy_(x)
        return 2 * x.numel() * x.element_size() / min(self.pair(lambda: y.copy_(x)) for _ in range(8))


# ---- compiling ----


def compile_some(task):
    jobs, done, deadline = task
    bench, kept = Bench(), {}
    for job, meta in jobs:
        if time.time() > deadline:
            return
        if job["id"] not in kept:
            kept.clear()
            b = bench.dense(job["k"], job["n"], job["dtype"])
            kept[job["id"]] = (
                bench.bsr(job),
                b,
                bench.torch.empty(job["m"], job["n"], device="cuda", dtype=b.dtype),
            )
        try:
            bench.triton_call(*kept[job["id"]], meta)()
            bench.torch.cuda.synchronize()
            message = ""
        except Exception as error:
            message = str(error).splitlines()[0][:120]
        with open(done, "a") as f:  # one short write: lines of several processes do not mix
            f.write(json.dumps({"key": kernel_key(job, meta), "message": message}) + "\n")


def compile_all(jobs, done, seconds):
    deadline, seen, tasks = time.time() + seconds, set(), []
    for job in jobs:
        for meta in configurations(job) if "triton" in job["rivals"] else []:
            key = tuple(kernel_key(job, meta))
            if key not in seen:
                seen.add(key)
                tasks.append((job, meta))
    workers = max(1, min(12, (os.cpu_count() or 2) - 2, len(tasks)))
    tasks.sort(key=lambda t: configurations(t[0]).index(t[1]))  # the likeliest first, should time run out
    shares = [sorted(tasks[i::workers], key=lambda t: t[0]["id"]) for i in range(workers)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        pool.map(compile_some, [(share, done, deadline) for share in shares], chunksize=1)


def measure_all(jobs, done, seconds):
    deadline, bench = time.time() + seconds, Bench()
    torch = bench.torch
    compiled = set()
    if os.path.exists(done):
        with open(done) as f:
            compiled = {tuple(x["key"]) for x in map(json.loads, f) if not x["message"]}

    def say(**words):
        print(json.dumps(words), flush=True)

    import triton

    say(
        versions={
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    )
    say(copy_rate=bench.copy_rate())
    for job in jobs:
        for rival in job["rivals"]:
            name = {"triton": "triton_bsr", "dense": "dense_cublas"}[rival]
            if time.time() > deadline:
                say(id=job["id"], rival=name, seconds=None, message="no time left")
                continue
            try:
                found = bench.triton(job, compiled) if rival == "triton" else bench.product(job)
            except Exception as error:
                found = {"seconds": None, "message": str(error).splitlines()[0][:200]}
            say(id=job["id"], rival=name, **found)
            torch.cuda.empty_cache()


def main():
    what, jobs_file, done, seconds = sys.argv[1:5]
    with open(jobs_file) as f:
        jobs = json.load(f)
    {"compile": compile_all, "measure": measure_all}[what](jobs, done, float(seconds))


if __name__ == "__main__":
    main()
