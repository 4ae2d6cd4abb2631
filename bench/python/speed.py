"""Measures what Python promises, against its rivals in the same run; prints one JSON object a row.

Called by bench/python_check, in the environment where the wheel is installed.
"""

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import sys
import time
import timeit

import numpy as np

try:
    import torch
except ImportError:
    torch = None

import sparse_autotune as sa
from sparse_autotune import _abi, _pattern, _products, _race
from sparse_autotune.__main__ import random_pattern

HAVE_CUDA = torch is not None and torch.cuda.is_available()


def show(name, seconds, text, target=None, met=None, ratios=None, problem=None, variant=None, **more):
    row = {
        "name": name,
        "problem": problem,
        "variant": variant,
        "seconds": seconds,
        "ratios": ratios or {},
        "text": text,
        "target": target or "",
        "met": met,
        **more,
    }
    print(json.dumps(row), flush=True)


def shows(*rows):
    """Gives a job the names of its rows, by which --only finds it."""

    def mark(job):
        job.rows = rows
        return job

    return mark


def rows_of(job):
    return [row.format(threads=sa.device_info()["threads"]) for row in job.rows]


def all_turns(jobs, rounds, warm=3):
    """What each of several measurements found, sorted; they take turns, so that a change of clocks meets all
    alike."""
    for job in jobs.values():
        for _ in range(warm):
            job()
    found = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
    return {name: sorted(times) for name, times in found.items()}


def medians(found):
    return {name: statistics.median(times) for name, times in found.items()}


def in_turns(jobs, rounds, warm=3):
    return medians(all_turns(jobs, rounds, warm))


def parts(size, block, density, dtype):
    rows, cols = size
    row_ptr, col_idx = random_pattern(rows, cols, (block, block), density, 1)
    values = np.random.default_rng(2).standard_normal((len(col_idx), block, block)).astype(dtype)
    return row_ptr, col_idx, values


def random_blocks(length, block, density):
    """Which blocks of a square mask are stored."""
    row_ptr, col_idx = random_pattern(length, length, (block, block), density, 1)
    stored = np.zeros((length // block, length // block), bool)
    for i in range(len(stored)):
        stored[i, col_idx[row_ptr[i] : row_ptr[i + 1]]] = True
    return stored


def describe(m, n, k, block, dtype, density):
    return {
        "op": "matmul",
        "m": m,
        "n": n,
        "k": k,
        "block": [block, block],
        "dtype": dtype,
        "density": density,
        "flops": 2.0 * m * n * k * density,
    }


# ---- CPU ----


def timed(call, times):
    def job():
        # thread pools spin for a while after their last job, with sixteen threads for more than 60 ms
        time.sleep(0.2)
        call()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - begin) / times

    return job


@shows("CPU: matmul 2048, block 64, density 0.125, f32, {threads} threads, beside SciPy")
def cpu_scipy():
    import scipy
    import scipy.sparse

    size, block, density = 2048, 64, 0.125
    row_ptr, col_idx, values = parts((size, size), block, density, np.float32)
    a = sa.BsrMatrix(row_ptr, col_idx, values, (size, size))
    theirs = scipy.sparse.bsr_array((values, col_idx, row_ptr), shape=(size, size))
    b = np.random.default_rng(3).standard_normal((size, size)).astype(np.float32)

    assert np.allclose(a @ b, theirs @ b, rtol=1e-3, atol=1e-2)
    dense = a.to_dense()
    found = in_turns(
        {
            "ours": timed(lambda: a @ b, 3),
            "scipy": timed(lambda: theirs @ b, 1),
            "dense": timed(lambda: dense @ b, 1),
        },
        7,
        1,
    )
    ratio = found["scipy"] / found["ours"]
    plan = a._pattern.plan("cpu", _products.plain_problem(_abi.F32, size))
    show(
        rows_of(cpu_scipy)[0],
        found["ours"],
        f"{found['ours'] * 1e3:.2f} ms, SciPy {found['scipy'] * 1e3:.0f} ms: {ratio:.0f}x",
        "at least 50x SciPy",
        ratio >= 50,
        {"scipy_bsr": ratio, "dense_numpy": found["dense"] / found["ours"]},
        describe(size, size, size, block, "f32", density),
        plan.info().variant.decode(),
        rival_seconds={"scipy_bsr": found["scipy"], "dense_numpy": found["dense"]},
        scipy=scipy.__version__,
    )


def host_costs(calls, batch=100, batches=100, sync=lambda: None):
    """Seconds that each call keeps the host busy, in batches that take turns."""

    def one_batch(call):
        def job():
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            taken = (time.perf_counter() - begin) / batch
            sync()
            return taken

        return job

    return all_turns({name: one_batch(call) for name, call in calls.items()}, batches)


def host_costs_where_quiet(calls, sync):
    """As host_costs, on whichever core is the fastest, looked for before every tenth round: a core slows down
    and recovers within seconds."""
    found = {name: [] for name in calls}
    for _ in range(10):
        with quietest_core():
            for name, times in host_costs(calls, batches=10, sync=sync).items():
                found[name] += times
    return {name: sorted(times) for name, times in found.items()}


def loop():
    """What a core does at its full speed in a microsecond or so."""
    return sum(range(200))


@contextlib.contextmanager
def quietest_core():
    """Keeps this thread on the core that is fastest now. Where other tenants share a machine, a core may run
    at half of its speed for seconds. Threads that are started inside stay there."""
    before = os.sched_getaffinity(0)
    try:
        taken = {}
        for core in before:
            os.sched_setaffinity(0, {core})
            taken[core] = min(timeit.repeat(loop, number=500, repeat=5))
        os.sched_setaffinity(0, {min(taken, key=taken.get)})
        yield
    finally:
        os.sched_setaffinity(0, before)


def host_cost(*arguments, **options):
    return medians(host_costs(*arguments, **options))


@shows("CPU: host cost of matmul on a 4x4 torch tensor", "CPU: host cost of matmul on a 4x4 NumPy array")
def cpu_overhead():
    if torch is None:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = sa.BsrMatrix.from_dense(torch.eye(4), 4)
        b, eye = torch.ones(4, 1), torch.eye(4)
        g, h = a.with_values(a.values.clone().requires_grad_()), b.clone().requires_grad_()
        found = host_cost(
            {
                "ours": lambda: sa.matmul(a, b),
                "grad": lambda: sa.matmul(g, b),
                "both": lambda: torch.autograd.grad(sa.matmul(g, h), (g.values, h), b),
                "dense": lambda: eye @ b,
                "empty": lambda: torch.empty_like(b),
            }
        )
    finally:
        torch.set_num_threads(threads)
    us = {name: f"{seconds * 1e6:.2f}" for name, seconds in found.items()}
    show(
        cpu_overhead.rows[0],
        found["ours"],
        (
            f"{us['ours']} us; with gradients {us['grad']} us, and with the backward pass {us['both']} us; "
            f"torch's dense @ {us['dense']} us, empty_like {us['empty']} us"
        ),
        with_gradients_seconds=found["grad"],
        backward_seconds=found["both"],
        rival_seconds={"dense_torch": found["dense"], "empty_like": found["empty"]},
    )
    import scipy.sparse

    eye, c = np.eye(4, dtype=np.float32), np.ones((4, 1), np.float32)
    n, theirs, out = (
        sa.BsrMatrix.from_dense(eye, 4),
        scipy.sparse.bsr_array(eye, blocksize=(4, 4)),
        np.empty((4, 1), np.float32),
    )
    found = host_cost(
        {
            "ours": lambda: sa.matmul(n, c),
            "out": lambda: sa.matmul(n, c, out=out),
            "from_scipy": lambda: sa.matmul(theirs, c),
            "scipy": lambda: theirs @ c,
            "dense": lambda: eye @ c,
        }
    )
    us = {name: f"{seconds * 1e6:.2f}" for name, seconds in found.items()}
    show(
        cpu_overhead.rows[1],
        found["ours"],
        (
            f"{us['ours']} us; into out {us['out']}; of a SciPy matrix {us['from_scipy']}, SciPy itself "
            f"{us['scipy']}, NumPy's dense @ {us['dense']}"
        ),
        out_seconds=found["out"],
        from_scipy_seconds=found["from_scipy"],
        rival_seconds={"scipy_bsr": found["scipy"], "dense_numpy": found["dense"]},
    )


class Nothing(torch.autograd.Function if torch else object):
    """Saves and returns what attention does, and computes nothing: what torch's autograd takes by itself."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def attention_host_cost(rows, operands, measure):
    """Rows of the forward pass alone, and of forward and backward pass, each beside torch's SDPA. On a CPU
    the kernels are part of it, therefore what is measured there is tiny."""
    grad, leaves = torch.randn_like(operands[0]), [x.clone().requires_grad_() for x in operands]
    attends = {
        "ours": sa.attention,
        "torch_sdpa": torch.nn.functional.scaled_dot_product_attention,
        "autograd_alone": Nothing.apply,
    }

    def forward(attend, given):
        return lambda: attend(*given)

    def step(attend):
        return lambda: torch.autograd.grad(attend(*leaves), leaves, grad)

    jobs = {name: forward(attend, operands) for name, attend in attends.items()}
    jobs |= {f"{name} with gradients": forward(attend, leaves) for name, attend in attends.items()}
    jobs |= {f"{name} both": step(attend) for name, attend in attends.items()}
    for job in jobs.values():
        job()  # starts what threads it needs
    batches = measure(jobs)
    found, tenth = medians(batches), {name: times[len(times) // 10] for name, times in batches.items()}
    us = {name: f"{seconds * 1e6:.1f}" for name, seconds in found.items()}
    race = sa.benchmark(sa.attention, *operands, fresh=False)
    more = {"problem": race.problem, "variant": race.best.variant}
    show(
        rows[0],
        found["ours"],
        (
            f"{us['ours']} us, torch {us['torch_sdpa']} us; with gradients {us['ours with gradients']} us, "
            f"torch {us['torch_sdpa with gradients']} us"
        ),
        ratios={"torch_sdpa": found["torch_sdpa"] / found["ours"]},
        rival_seconds={"torch_sdpa": found["torch_sdpa"]},
        with_gradients_seconds=found["ours with gradients"],
        **more,
    )
    show(
        rows[1],
        found["ours both"],
        (
            f"{us['ours both']} us, torch {us['torch_sdpa both']} us; an autograd function that computes "
            f"nothing {us['autograd_alone both']} us; in a tenth of the batches at most "
            f"{tenth['ours both'] * 1e6:.1f}, {tenth['torch_sdpa both'] * 1e6:.1f} and "
            f"{tenth['autograd_alone both'] * 1e6:.1f}"
        ),
        "at most 40 us",
        found["ours both"] <= 40e-6,
        {"torch_sdpa": found["torch_sdpa both"] / found["ours both"]},
        rival_seconds={
            "torch_sdpa": found["torch_sdpa both"],
            "autograd_alone": found["autograd_alone both"],
        },
        tenth_seconds=tenth,
        **more,
    )


def host_cost_rows(place):
    return shows(*(f"{place}: host cost of attention{what}" for what in ("", ", forward and backward")))


@host_cost_rows("CPU")
def cpu_attention_host_cost():
    if torch is None:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        operands = [torch.randn(1, 1, 16, 32) for _ in range(3)]
        attention_host_cost(cpu_attention_host_cost.rows, operands, host_costs)
    finally:
        torch.set_num_threads(threads)


@shows(
    "CPU: attention 1, 8, 1024, 64, f32, {threads} threads, beside torch's SDPA",
    "CPU: attention 1, 8, 1024, 64, f32, {threads} threads, 64-blocks, density 0.14",
)
def cpu_attention():
    """The call as it is tuned, and the best kernel of our own: torch's takes part in the race."""
    if torch is None:
        return
    length, block, density = 1024, 64, 0.14
    stored = random_blocks(length, block, density)
    mask = sa.AttentionMask.from_blocks(stored, (length, length), block)
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    assert torch.allclose(sa.attention(q, k, v), sdpa(q, k, v), rtol=1e-4, atol=1e-5)

    def own(*words):
        return own_kernel(sa.benchmark(sa.attention, q, k, v, *words))

    dense, masked = own(), own(mask)
    found = in_turns(
        {
            "ours": timed(lambda: sa.attention(q, k, v), 5),
            "torch": timed(lambda: sdpa(q, k, v), 5),
            "masked": timed(lambda: sa.attention(q, k, v, mask), 20),
        },
        9,
        1,
    )
    problem = {
        "op": "attention",
        "batch": 1,
        "heads": 8,
        "m": length,
        "n": length,
        "dim": 64,
        "dtype": "f32",
        "density": 1.0,
        "flops": 4.0 * 64 * 8 * length**2,
    }
    kept = stored.mean()
    rows = rows_of(cpu_attention)
    ratio, times = found["torch"] / found["ours"], found["ours"] / found["masked"]
    show(
        rows[0],
        found["ours"],
        (
            f"{found['ours'] * 1e3:.2f} ms, torch {found['torch'] * 1e3:.2f} ms: {ratio:.2f}x; the best "
            f"kernel of ours {dense.seconds * 1e3:.2f} ms in its race"
        ),
        "no slower than torch's SDPA",
        ratio >= 1,
        {"torch_sdpa": ratio, "torch_sdpa_own_kernel": found["torch"] / dense.seconds},
        problem,
        dense.variant,
        rival_seconds={"torch_sdpa": found["torch"]},
        own_kernel_seconds=dense.seconds,
    )
    show(
        rows[1],
        found["masked"],
        (
            f"{found['masked'] * 1e3:.2f} ms, without the mask {found['ours'] * 1e3:.2f} ms: {times:.2f}x; "
            f"kernels of ours {dense.seconds / masked.seconds:.2f}x"
        ),
        "at least 4x our own dense",
        dense.seconds / masked.seconds >= 4,
        {"own_dense": dense.seconds / masked.seconds, "call_dense": times},
        {**problem, "density": kept, "block": [block, block], "flops": problem["flops"] * kept},
        masked.variant,
        own_kernel_seconds=masked.seconds,
    )


# ---- CUDA ----


def cuda_matrix(size, block, density, dtype):
    row_ptr, col_idx, values = parts(size, block, density, np.float32)
    return sa.BsrMatrix(row_ptr, col_idx, torch.tensor(values).cuda().to(dtype), size)


def sparse_bsr(a):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return a.to_torch()


def plan_call(a, b):
    """The C plan that eager matmul uses, run by nothing but sat_run."""
    out = torch.empty(a.shape[0], b.shape[1], dtype=b.dtype, device=b.device)
    align = lambda pointer: _pattern.alignment(pointer, "cuda")  # noqa: E731
    problem = _pattern.Problem(
        op=_abi.MATMUL,
        matmul=(0, 0, 0),
        n=b.shape[1],
        batch=1,
        a_dtype=_abi.F16,
        b_dtype=_abi.F16,
        c_dtype=_abi.F16,
        b=(b.shape[1], 1, 0),
        c=(b.shape[1], 1, 0),
        a_align=align(a.values.data_ptr()),
        b_align=align(b.data_ptr()),
        c_align=align(out.data_ptr()),
        alpha=1.0,
        beta=0.0,
        flags=0,
    )
    plan = a._pattern.plan(str(b.device), problem)
    inputs = (ctypes.c_void_p * 2)(a.values.data_ptr(), b.data_ptr())
    outputs = (ctypes.c_void_p * 1)(out.data_ptr())
    stream, run, handle = torch.cuda.current_stream().cuda_stream or None, _abi.lib.sat_run, plan.handle
    keep = (out, plan)

    def call():
        if run(handle, inputs, 2, outputs, 1, stream):
            raise RuntimeError(_abi.lib.sat_last_error().decode())
        return keep

    return call, plan.info().variant.decode()


def device_time(call, times):
    def job():
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        call()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / times

    return job


@shows("CUDA: host cost of matmul without gradients", "CUDA: host cost of matmul with gradients")
def cuda_host_cost():
    a = cuda_matrix((512, 512), 64, 0.125, torch.float16)
    b = torch.randn(512, 64, device="cuda").half()
    sync = torch.cuda.synchronize
    theirs = sparse_bsr(a)
    plan, variant = plan_call(a, b)
    g = a.with_values(a.values.clone().requires_grad_())
    h, ones = b.clone().requires_grad_(), torch.ones(512, 64, device="cuda").half()
    plain = {
        "ours": lambda: sa.matmul(a, b),
        "plan": plan,
        "empty": lambda: torch.empty_like(b),
        "dense": lambda: b.t() @ b,
        "bsr": lambda: theirs @ b,
        "loop": loop,
    }
    graded = {"grad": lambda: sa.matmul(g, h), "both": lambda: sa.matmul(g, h).backward(ones)}
    for call in (*plain.values(), *graded.values()):
        call()  # starts what threads it needs
    batches = host_costs_where_quiet(plain, sync) | host_costs_where_quiet(graded, sync)
    with torch.no_grad():
        batches |= host_costs_where_quiet({"no_grad": plain["ours"]}, sync)
    found = medians(batches)
    tenth = {name: times[len(times) // 10] for name, times in batches.items()}
    us = {name: f"{seconds * 1e6:.2f}" for name, seconds in found.items()}
    problem = describe(512, 64, 512, 64, "f16", 0.125)
    rivals = {
        "sparse_bsr": found["bsr"],
        "dense_torch": found["dense"],
        "sat_run_by_ctypes": found["plan"],
        "empty_like": found["empty"],
        "python_loop": found["loop"],
    }
    show(
        cuda_host_cost.rows[0],
        found["ours"],
        (
            f"{us['ours']} us (torch.sparse_bsr {us['bsr']}, dense {us['dense']}, sat_run by ctypes "
            f"{us['plan']}, empty_like {us['empty']}, a loop of Python's {us['loop']}), under no_grad "
            f"{us['no_grad']}; in a tenth of the batches at most {tenth['ours'] * 1e6:.2f}, "
            f"the loop {tenth['loop'] * 1e6:.2f}"
        ),
        "at most 8 us",
        found["ours"] <= 8e-6,
        {"sparse_bsr": found["bsr"] / found["ours"]},
        problem,
        variant,
        rival_seconds=rivals,
        no_grad_seconds=found["no_grad"],
        tenth_seconds=tenth,
    )
    show(
        cuda_host_cost.rows[1],
        found["grad"],
        f"{us['grad']} us; with the backward pass {us['both']} us",
        "at most 30 us",
        found["grad"] <= 30e-6,
        {},
        problem,
        variant,
        backward_seconds=found["both"],
    )


@host_cost_rows("CUDA")
def cuda_attention_host_cost():
    """A step queues a dozen kernels at most, so that the queue is never full within a batch."""
    operands = [heads(1, 8, 100, 64) for _ in range(3)]

    def measure(jobs):
        return host_costs_where_quiet(jobs, torch.cuda.synchronize)

    attention_host_cost(cuda_attention_host_cost.rows, operands, measure)


@shows(
    *(
        f"CUDA: eager matmul 4096^3, f16, block 64, density 0.125, beside {rival}"
        for rival in ("the C plan", "torch.sparse_bsr")
    )
)
def cuda_eager():
    size, block, density = 4096, 64, 0.125
    a = cuda_matrix((size, size), block, density, torch.float16)
    b = torch.randn(size, size, device="cuda").half()
    theirs, dense = sparse_bsr(a), a.to_dense()
    plan, variant = plan_call(a, b)
    with torch.no_grad():
        got, expected = sa.matmul(a, b), dense @ b
        assert torch.allclose(got.float(), expected.float(), rtol=2e-2, atol=0.5), "the products differ"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                captured = sa.matmul(a, b)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, got), "a captured product differs"
        jobs = {
            "eager": device_time(lambda: sa.matmul(a, b), 200),
            "plan": device_time(plan, 200),
            "graph": device_time(graph.replay, 20),
            "sparse_bsr": device_time(lambda: theirs @ b, 30),
            "dense": device_time(lambda: dense @ b, 50),
        }
        found = in_turns(jobs, 9)
    found["graph"] /= 10
    over = found["eager"] / found["plan"]
    problem = describe(size, size, size, block, "f16", density)
    rivals = {k: found[k] for k in ("plan", "graph", "sparse_bsr", "dense")}
    show(
        cuda_eager.rows[0],
        found["eager"],
        (
            f"{found['eager'] * 1e6:.1f} us, C plan {found['plan'] * 1e6:.1f} us, in a graph "
            f"{found['graph'] * 1e6:.1f} us: {over:.3f}"
        ),
        "at most 1.10 of the plan",
        over <= 1.10,
        {"plan": 1 / over},
        problem,
        variant,
        rival_seconds=rivals,
    )
    ratio = found["sparse_bsr"] / found["eager"]
    show(
        cuda_eager.rows[1],
        found["eager"],
        f"{ratio:.2f}x faster; {found['dense'] / found['eager']:.2f}x than dense",
        "at least 4x",
        ratio >= 4,
        {"sparse_bsr": ratio, "dense_cublas": found["dense"] / found["eager"]},
        problem,
        variant,
        rival_seconds=rivals,
    )


def choice(race, variant):
    """What a variant, chosen by this race, and the fastest took there."""
    times = {
        r.variant: r.seconds
        for r in sorted((r for r in race if r.verdict == "ok" and r.may_win), key=lambda r: r.seconds)
    }
    return {"variant": variant, "race_seconds": times.get(variant), "fastest": dict(list(times.items())[:4])}


def products_of(layer):
    """What the tuner chose for each product that a SparseLinear has run."""
    found, pattern = {}, layer.pattern()
    for (device, _, problem, _), plan in pattern._first.items():
        name = (
            "gradient_to_values"
            if problem.struct.op == _abi.SAMPLED
            else "gradient_to_input"
            if problem.struct.matmul.transpose
            else "forward"
        )
        found[name] = choice(_race.run(pattern, device, problem, fresh=False), plan.info().variant.decode())
    return found


@shows(
    *(
        (
            f"CUDA: SparseLinear 4096 to 4096, 8192 tokens, {dtype}, block 64, density 0.125, forward and "
            "backward"
        )
        for dtype in ("float16", "bfloat16")
    )
)
def cuda_linear():
    """A slow step is the host's where queueing takes as long, else the device's; then the choices say whose
    kernels those were."""
    tokens, size = 8192, 4096
    for row, dtype in zip(cuda_linear.rows, (torch.float16, torch.bfloat16)):
        layer = sa.SparseLinear(size, size, block=64, density=0.125, device="cuda", dtype=dtype)
        dense = torch.nn.Linear(size, size, device="cuda", dtype=dtype)
        x = torch.randn(tokens, size, device="cuda").to(dtype).requires_grad_()
        ones = torch.randn(tokens, size, device="cuda").to(dtype)

        def step(module):
            def call():
                x.grad = None
                for p in module.parameters():
                    p.grad = None
                module(x).backward(ones)

            return call

        def forward(module):
            def call():
                with torch.no_grad():
                    module(x)

            return call

        # rounds over 2 s: the host's time counts, and it comes in bursts
        found = in_turns(
            {
                "ours": device_time(step(layer), 20),
                "dense": device_time(step(dense), 20),
                "ours forward": device_time(forward(layer), 20),
                "dense forward": device_time(forward(dense), 20),
            },
            41,
        )
        host = host_cost(
            {"ours": step(layer), "dense": step(dense)}, batch=20, batches=15, sync=torch.cuda.synchronize
        )
        products = products_of(layer)
        raced = sum(p["race_seconds"] or 0 for p in products.values())
        ratio, ahead = found["dense"] / found["ours"], found["dense forward"] / found["ours forward"]
        show(
            row,
            found["ours"],
            f"{found['ours'] * 1e6:.0f} us, nn.Linear {found['dense'] * 1e6:.0f} us: {ratio:.2f}x (forward "
            f"{ahead:.2f}x); the host queues it in {host['ours'] * 1e6:.0f} us, nn.Linear's in "
            f"{host['dense'] * 1e6:.0f}; the products took {raced * 1e6:.0f} us in their races",
            "at least 3x nn.Linear",
            ratio >= 3,
            {"nn_linear": ratio, "nn_linear_forward": ahead},
            describe(size, tokens, size, 64, "f16" if dtype == torch.float16 else "bf16", 0.125),
            products["forward"]["variant"],
            rival_seconds={"nn_linear": found["dense"], "nn_linear_forward": found["dense forward"]},
            forward_seconds=found["ours forward"],
            host_seconds=host["ours"],
            rival_host_seconds={"nn_linear": host["dense"]},
            products=products,
        )


def sdpa_jobs(call, times):
    """Timings of torch's own choice and of each backend that takes the call, and why the others do not."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def alone(backend):
        job = device_time(call, times)

        def timed():
            with sdpa_kernel(backend):
                return job()

        return timed

    jobs, refused = {"sdpa_default": device_time(call, times)}, {}
    for name in ("flash", "efficient", "cudnn"):
        backend = getattr(SDPBackend, f"{name.upper()}_ATTENTION")
        try:
            with sdpa_kernel(backend):
                call()
            jobs[f"sdpa_{name}"] = alone(backend)
        except RuntimeError as error:
            refused[f"sdpa_{name}"] = str(error).partition("\n")[0][:200]
    return jobs, refused


def heads(*shape):
    return torch.randn(*shape, device="cuda").half()


def check_close(got, expected):
    error = ((got.float() - expected.float()).abs().max() / expected.float().abs().max()).item()
    assert error < 1e-2, f"the results differ by {error:.2g} of the largest"


def own_kernel(race):
    """The fastest that is neither torch's nor a library's."""
    return min(
        (r for r in race if r.verdict == "ok" and not r.library and "_torch_" not in r.variant),
        key=lambda r: r.seconds,
    )


def show_attention(row, found, races, least, target, refused=None):
    """`found`: seconds of ours and of the rivals. `races`: those that the call has made itself, by what they
    are for."""
    ours, rivals = found["ours"], {name: seconds for name, seconds in found.items() if name != "ours"}
    best = min(rivals, key=rivals.get)
    ratio, first = rivals[best] / ours, next(iter(races.values()))
    own = {name: own_kernel(race) for name, race in races.items()}
    own_seconds = sum(r.seconds for r in own.values())
    problem = first.problem | {
        name: sum(race.problem[name] for race in races.values())
        for name in ("flops", "bytes", "floor_seconds")
    }
    show(
        row,
        ours,
        (
            f"{ours * 1e6:.1f} us, the best of torch's {rivals[best] * 1e6:.1f} us ({best}): {ratio:.2f}x; "
            f"the best kernel{'s' * (len(own) > 1)} of ours {own_seconds * 1e6:.1f} us in "
            f"{'their races' if len(own) > 1 else 'its race'}"
        ),
        target,
        ratio >= least,
        {name: seconds / ours for name, seconds in rivals.items()},
        problem,
        first.best.variant,
        rival_seconds=rivals,
        refused=refused or {},
        own_kernel=own[next(iter(own))].variant,
        own_kernel_seconds=own_seconds,
        choices={name: choice(race, race.best.variant) for name, race in races.items()},
    )


ATTENTION = [
    (1, 8, 512, 64, False),
    (1, 8, 1024, 64, False),
    (1, 16, 4096, 128, False),
    (1, 16, 4096, 128, True),
]
BEST = 1 / 1.1, "at most 1.1 of the best of torch's"  # a race takes those within a few percent for equal


@shows(
    *(
        (
            f"CUDA: attention {b}, {h}, {length}, {dim}{', causal' * causal}, f16, launch by launch, beside "
            "torch's SDPA"
        )
        for b, h, length, dim, causal in ATTENTION
    )
)
def cuda_attention():
    """The call as it is tuned, torch's own backends among what raced, and the best kernel of our own."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for row, (batch, count, length, dim, causal) in zip(cuda_attention.rows, ATTENTION):
        torch.manual_seed(1)
        q, k, v = (heads(batch, count, length, dim) for _ in range(3))
        times = 400 if length <= 1024 else 50

        def ours():
            return sa.attention(q, k, v, causal=causal)

        with torch.no_grad():
            check_close(ours(), sdpa(q.float(), k.float(), v.float(), is_causal=causal))
            jobs, refused = sdpa_jobs(lambda: sdpa(q, k, v, is_causal=causal), times)
            found = in_turns({"ours": device_time(ours, times), **jobs}, 9)
        show_attention(
            row,
            found,
            {"forward": sa.benchmark(sa.attention, q, k, v, causal=causal, fresh=False)},
            0.97,
            "at least 0.97 of torch's best",
            refused,
        )


DECODE = (32, 32, 8, 8192, 128)


@shows(
    "CUDA: attention {}, {} over {}, 1 query, {} keys, {}, f16, launch by launch, beside torch's SDPA".format(
        *DECODE
    )
)
def cuda_attention_decode():
    batch, count, kv_heads, length, dim = DECODE
    sdpa = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(1)
    q, k, v = (
        heads(batch, count, 1, dim),
        heads(batch, kv_heads, length, dim),
        heads(batch, kv_heads, length, dim),
    )
    with torch.no_grad():
        check_close(
            sa.attention(q, k, v)[-2:], sdpa(q[-2:].float(), k[-2:].float(), v[-2:].float(), enable_gqa=True)
        )
        jobs, refused = sdpa_jobs(lambda: sdpa(q, k, v, enable_gqa=True), 50)
        found = in_turns({"ours": device_time(lambda: sa.attention(q, k, v), 50), **jobs}, 9)
    show_attention(
        cuda_attention_decode.rows[0],
        found,
        {"forward": sa.benchmark(sa.attention, q, k, v, fresh=False)},
        *BEST,
        refused,
    )


TRAINING = (1, 16, 4096, 128)


@shows(
    "CUDA: attention {}, {}, {}, {}, f16, forward and backward, launch by launch, beside torch's SDPA".format(
        *TRAINING
    )
)
def cuda_attention_training():
    torch.manual_seed(1)
    operands, grad = [heads(*TRAINING).requires_grad_() for _ in range(3)], heads(*TRAINING)
    exact = [x.detach().float().requires_grad_() for x in operands]

    def step(attend, given=operands, back=grad):
        return lambda: torch.autograd.grad(attend(*given), given, back)

    sdpa = torch.nn.functional.scaled_dot_product_attention
    for got, expected in zip(step(sa.attention)(), step(sdpa, exact, grad.float())()):
        check_close(got, expected)
    jobs, refused = sdpa_jobs(step(sdpa), 20)
    found = in_turns({"ours": device_time(step(sa.attention), 20), **jobs}, 9)
    races = {
        "forward": sa.benchmark(sa.attention, *operands, return_lse=True, fresh=False),
        "backward": sa.benchmark(sa.attention, *operands, backward=True, fresh=False),
    }
    show_attention(cuda_attention_training.rows[0], found, races, *BEST, refused)


FLEX, WINDOW, BLOCK, DENSITY = (1, 16, 8192, 128), 1024, 128, 0.26


@shows(
    *(
        "CUDA: attention {}, {}, {}, {}, {mask}, f16, launch by launch, beside FlexAttention".format(
            *FLEX, mask=mask
        )
        for mask in (f"window {WINDOW}", f"{BLOCK}-blocks, density {DENSITY}")
    )
)
def cuda_attention_flex():
    """FlexAttention is compiled once a mask, and once more in the race of ours, where it takes part."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, flex = FLEX[2], torch.compile(flex_attention, dynamic=False)
    stored = random_blocks(length, BLOCK, DENSITY)
    grid = torch.tensor(stored, device="cuda")
    masks = [
        ({"window": WINDOW}, lambda b, h, i, j: (i - j < WINDOW) & (j - i < WINDOW)),
        (
            {"mask": sa.AttentionMask.from_blocks(stored, (length, length), BLOCK)},
            lambda b, h, i, j: grid[i // BLOCK, j // BLOCK],
        ),
    ]
    for row, (words, kept) in zip(cuda_attention_flex.rows, masks):
        torch.manual_seed(1)
        q, k, v = (heads(*FLEX) for _ in range(3))
        mask = create_block_mask(kept, None, None, length, length, device="cuda")

        def ours():
            return sa.attention(q, k, v, **words)

        def theirs():
            return flex(q, k, v, block_mask=mask)

        with torch.no_grad():
            check_close(ours(), theirs())
            found = in_turns({"ours": device_time(ours, 50), "flex_attention": device_time(theirs, 50)}, 9)
        show_attention(
            row, found, {"forward": sa.benchmark(sa.attention, q, k, v, **words, fresh=False)}, *BEST
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="jobs of which a row's name, or their own, holds this")
    parser.add_argument("--effort", default="quick")
    a = parser.parse_args()
    sa.set_effort(a.effort)
    info = sa.device_info("cuda:0" if HAVE_CUDA else "cpu")
    quick = torch is not None and sa._quick._fast is not None
    machine = {
        "name": info["name"],
        "identity": info["identity"],
        "numpy": np.__version__,
        "torch": torch and torch.__version__,
        "sparse_autotune": sa.__version__,
        "extension": quick,
    }
    print(json.dumps({"machine": machine}), flush=True)
    jobs = [cpu_scipy, cpu_overhead, cpu_attention_host_cost, cpu_attention] + (
        [
            cuda_host_cost,
            cuda_attention_host_cost,
            cuda_eager,
            cuda_linear,
            cuda_attention,
            cuda_attention_decode,
            cuda_attention_training,
            cuda_attention_flex,
        ]
        if HAVE_CUDA
        else []
    )
    chosen = [
        job for job in jobs if not a.only or any(a.only in name for name in (job.__name__, *rows_of(job)))
    ]
    if not chosen:
        print(
            f"no speed of this machine has {a.only!r} in its name; there are:",
            *(row for job in jobs for row in rows_of(job)),
            sep="\n  ",
        )
        return 1
    status = 0
    for job in chosen:
        begin = time.perf_counter()
        try:
            job()
        except Exception as error:  # a row that cannot be measured keeps no other from being
            import traceback

            traceback.print_exc()
            show(job.__name__, None, f"{type(error).__name__}: {error}"[:300])
            status = 1
        print(f"{job.__name__}: {time.perf_counter() - begin:.1f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
