"""What a call costs from Python: products so small that the kernel hardly counts.

It prints a JSON object a line: name, seconds. Beside an installed package, or with its folder in PYTHONPATH;
bench/call_turns runs it with two of them in turns.
"""

import json
import statistics
import time

import numpy as np

import sparse_autotune as sa

try:
    import torch
except ImportError:
    torch = None

ROUNDS, CALLS = 31, 2000


def seconds(call):
    """The median over the rounds."""
    times = []
    for _ in range(ROUNDS + 1):  # the first one warms up
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times[1:])


def show(name, call):
    print(json.dumps({"name": name, "seconds": seconds(call)}), flush=True)


def matrix(values):
    return sa.BsrMatrix([0, 2, 3], [0, 2, 1], values, shape=(4, 6))


def main():
    b, out = np.ones((6, 2), np.float32), np.empty((4, 2), np.float32)
    a = matrix(np.ones((3, 2, 2), np.float32))
    show("Python, NumPy: A @ B", lambda: a @ b)
    show("Python, NumPy: matmul with out", lambda: sa.matmul(a, b, out=out))
    if torch is None:
        return
    torch.set_num_threads(1)
    b = torch.ones(6, 2)
    a = matrix(torch.ones(3, 2, 2))
    layer = sa.SparseLinear(64, 64, block=16, density=0.25)
    x = torch.randn(4, 64)
    show("Python, torch: A @ B", lambda: a @ b)
    with torch.no_grad():
        show("Python, torch: SparseLinear without gradients", lambda: layer(x))
    show("Python, torch: SparseLinear, forward and backward", lambda: layer(x).sum().backward())


if __name__ == "__main__":
    main()
