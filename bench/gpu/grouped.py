#!/usr/bin/env python3
"""Products of groups beside `torch._grouped_mm`: each verified, then timed in turns by CUDA graphs.

usage: bench/gpu/grouped.py [--seconds S] [--only NAME] [--record FILE]

Needs a GPU, torch and the package sparse_autotune. Prints a table; a record has more. The bytes of a rate
are those of the experts in use. The exit status is 1 if a result was wrong.
"""

import argparse
import shlex
import statistics
import sys
import time
from pathlib import Path

import torch

import sparse_autotune as sa

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True

import report

# name, experts, rows, width, hidden, how uneven
PROBLEMS = (
    ("moe layer", 64, 16384, 2048, 1024, "uniform"),
    ("moe layer", 64, 16384, 2048, 1024, "skewed"),
    ("moe layer, back", 64, 16384, 1024, 2048, "uniform"),
    ("moe layer, back", 64, 16384, 1024, 2048, "skewed"),
    ("decode", 64, 16, 4096, 2048, "uniform"),
    ("decode", 64, 128, 4096, 2048, "skewed"),
    ("large", 256, 262144, 6144, 4096, "uniform"),
    ("large", 256, 262144, 6144, 4096, "skewed"),
)
CALLS = {"large": 1}


def make_offsets(experts, rows, how, generator):
    """The ends of groups behind a zero; skewed: sizes by a power law, a few groups empty."""
    weights = torch.rand(experts, generator=generator) * 0.2 + 0.9
    if how == "skewed":
        ranks = torch.randperm(experts, generator=generator) + 1.0
        weights = 1 / ranks
        weights[ranks > 0.95 * experts] = 0
    chosen = torch.multinomial(weights, rows, replacement=True, generator=generator)
    counts = torch.bincount(chosen, minlength=experts)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def operations(x, w, z, offsets):
    """(name, ours, torch's, a loop's) of a layer y = x w^T: its product and both gradients. w is (experts,
    out, in). The loop knows the offsets on the host."""
    ends = offsets[1:].to(torch.int32)
    turned = w.transpose(1, 2)
    grouped = torch._grouped_mm
    known = offsets.tolist()
    rows = [(g, slice(i, j)) for g, (i, j) in enumerate(zip(known, known[1:])) if i < j]
    y, back, sums = z.new_empty(z.shape), x.new_empty(x.shape), w.new_zeros(w.shape)

    def forward():
        for g, r in rows:
            torch.mm(x[r], turned[g], out=y[r])

    def gradient_of_x():
        for g, r in rows:
            torch.mm(z[r], w[g], out=back[r])

    def gradient_of_w():
        sums.zero_()
        for g, r in rows:
            torch.mm(z[r].t(), x[r], out=sums[g])

    return (
        ("forward", lambda: sa.grouped_matmul(x, turned, offsets), lambda: grouped(x, turned, ends), forward),
        (
            "gradient of x",
            lambda: sa.grouped_matmul(z, w, offsets),
            lambda: grouped(z, w, ends),
            gradient_of_x,
        ),
        (
            "gradient of w",
            lambda: sa.grouped_weights(z, x, offsets),
            lambda: grouped(z.t(), x, ends),
            gradient_of_w,
        ),
    )


def capture(call, calls):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def in_turns(graphs, calls, seconds):
    times = [[] for _ in graphs]
    end = time.monotonic() + seconds
    begin, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for graph in graphs:
        graph.replay()
    while time.monotonic() < end or len(times[0]) < 5:
        for mine, graph in zip(times, graphs):
            begin.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            mine.append(begin.elapsed_time(stop) * 1e-3 / calls)
    return [statistics.median(mine) for mine in times]


def error_of(op, got, x, w, z, offsets):
    """The largest relative error of a few groups against float64."""
    worst = 0.0
    bounds = offsets.tolist()
    sizes = [b - a for a, b in zip(bounds, bounds[1:])]
    for g in {sizes.index(max(sizes)), sizes.index(min(sizes)), 1}:
        rows = slice(bounds[g], bounds[g + 1])
        if op == "forward":
            mine, want = got[rows], x[rows].double() @ w[g].double().t()
        elif op == "gradient of x":
            mine, want = got[rows], z[rows].double() @ w[g].double()
        else:
            mine, want = got[g], z[rows].double().t() @ x[rows].double()
        if want.numel():
            norm = want.norm().item()
            error = (mine.double() - want).norm().item()
            worst = max(worst, error / norm if norm else error)
    return worst


def measure(problem, dtype, seconds):
    name, experts, rows, width, hidden, how = problem
    generator = torch.Generator().manual_seed(experts + rows + len(how))
    offsets = make_offsets(experts, rows, how, generator).cuda()
    x = torch.randn(rows, width, device="cuda", dtype=dtype)
    w = torch.randn(experts, hidden, width, device="cuda", dtype=dtype)
    z = torch.randn(rows, hidden, device="cuda", dtype=dtype)
    flops, calls = 2.0 * rows * width * hidden, CALLS.get(name, 10)
    dense = torch.randn(width, hidden, device="cuda", dtype=dtype)
    in_use = int((offsets.diff() > 0).sum())
    for op, ours, theirs, loop in operations(x, w, z, offsets):
        begun = time.monotonic()
        got = ours()
        torch.cuda.synchronize()
        tuning = time.monotonic() - begun
        error = error_of(op, got, x, w, z, offsets)
        del got
        graphs = [capture(call, calls) for call in (ours, theirs, loop, lambda: x @ dense)]
        mine, peer, looped, bare = in_turns(graphs, calls, seconds)
        matrices = experts if op == "gradient of w" else in_use  # an empty group's gradient is written, too
        moved = (matrices * width * hidden + rows * (width + hidden)) * x.element_size()
        yield {
            "problem": f"{name} {op} {how} {experts} x {rows} x {width} x {hidden}",
            "op": "grouped" if op != "gradient of w" else "grouped-weights",
            "dtype": str(dtype).removeprefix("torch."),
            "seconds": mine,
            "flops_per_second": flops / mine,
            "bytes_per_second": moved / mine,
            "ratios": {
                "torch_grouped_mm": peer / mine,
                "loop_over_experts": looped / mine,
                "dense_cublas": bare / mine,
            },
            "relative_error": error,
            "tuning_seconds": tuning,
        }
        del graphs
        torch.cuda.empty_cache()


def measure_step(dtype, seconds):
    """Up and down of a mixture with new routing at each step, from Python, beside its kernels in a graph."""
    experts, rows, width, hidden = 64, 16384, 2048, 1024
    generator = torch.Generator().manual_seed(1)
    routes = [make_offsets(experts, rows, "skewed", generator).cuda() for _ in range(16)]
    x = torch.randn(rows, width, device="cuda", dtype=dtype)
    up = torch.randn(experts, hidden, width, device="cuda", dtype=dtype).transpose(1, 2)
    down = torch.randn(experts, width, hidden, device="cuda", dtype=dtype).transpose(1, 2)
    offsets = routes[0].clone()

    def step():
        return sa.grouped_matmul(sa.grouped_matmul(x, up, offsets), down, offsets)

    def new_step(number):
        offsets.copy_(routes[number % len(routes)])
        return step()

    new_step(0)
    torch.cuda.synchronize()
    graph = capture(step, 10)
    (kernels,) = in_turns([graph], 10, seconds)
    times, begin, stop = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for turn in range(10):
        begin.record()
        for number in range(50):
            new_step(turn + number)
        stop.record()
        stop.synchronize()
        times.append(begin.elapsed_time(stop) * 1e-3 / 50)
    return {
        "problem": f"step with new routing {experts} x {rows} x {width} x {hidden} x {width}",
        "op": "grouped",
        "dtype": str(dtype).removeprefix("torch."),
        "seconds": statistics.median(times),
        "kernel_seconds": kernels,
        "ratios": {},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each row's turns (0.3)")
    parser.add_argument("--only", default="", help="only problems whose name holds this")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rows, wrong = [], 0
    for problem in PROBLEMS:
        if arguments.only not in " ".join(map(str, problem)):
            continue
        for row in measure(problem, torch.bfloat16, arguments.seconds):
            wrong += not row["relative_error"] < 0.01
            rows.append(row)
            ratios = "  ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
            print(
                f"{row['seconds'] * 1e6:10.1f} us {row['flops_per_second'] * 1e-12:7.1f} TFLOPS"
                f" {row['bytes_per_second'] * 1e-12:5.2f} TB/s  {ratios}  error {row['relative_error']:.1e}"
                f"  {row['problem']}",
                flush=True,
            )
    if not arguments.only:
        row = measure_step(torch.bfloat16, arguments.seconds)
        rows.append(row)
        print(
            f"{row['seconds'] * 1e6:10.1f} us, its kernels {row['kernel_seconds'] * 1e6:.1f} us"
            f"  {row['problem']}"
        )
    if arguments.record:
        machine = {**sa.device_info("cuda:0"), "torch": torch.__version__}
        command = shlex.join(["bench/gpu/grouped.py", *(Path(w).name for w in sys.argv[1:])])
        report.write(arguments.record, ROOT, command, machine, rows, {"wrong": wrong})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
