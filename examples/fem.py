"""A matrix as finite elements make it, with SciPy: conjugate gradients for several right-hand sides at once.

Linear elasticity on a grid has three unknowns a node, so its matrix is made of small dense blocks: BSR. The
block size that is fastest on this machine may be a multiple of three, and is found by trying.

    python examples/fem.py
"""

# %% The matrix: three unknowns a node, each node coupled to its neighbours on a grid
import argparse
import time

import numpy as np
import scipy.sparse as sparse

import sparse_autotune as sa

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--nodes", type=int, default=24, help="nodes a side of the cube")
parser.add_argument("--loads", type=int, default=32, help="right-hand sides")
options = parser.parse_args()


def stiffness(n):
    """Symmetric and positive definite; 3x3 blocks."""
    line = sparse.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    eye = sparse.eye_array(n)
    grid = (
        sparse.kron(sparse.kron(line, eye), eye)
        + sparse.kron(sparse.kron(eye, line), eye)
        + sparse.kron(sparse.kron(eye, eye), line)
    )
    material = np.array([[2.0, 0.4, 0.4], [0.4, 2.0, 0.4], [0.4, 0.4, 2.0]])
    return sparse.csr_array(sparse.kron(grid + 0.05 * sparse.eye_array(n**3), material)).astype(np.float64)


csr = stiffness(options.nodes)
print(f"{csr.shape[0]} unknowns, {csr.nnz} nonzeros")

# %% As blocks of three, and as whatever is fastest here for so many columns
a = sa.BsrMatrix.from_csr(csr, block=3)
best = sa.BsrMatrix.from_csr(csr, block="auto", columns=options.loads)
print(a)
print(best)


# %% Conjugate gradients: every step is one product with all right-hand sides
def solve(product, b, steps=60):
    x, r = np.zeros_like(b), b.copy()
    p, rr = r.copy(), (r * r).sum(0)
    for _ in range(steps):
        q = product(p)
        alpha = rr / (p * q).sum(0)
        x += alpha * p
        r -= alpha * q
        new = (r * r).sum(0)
        p = r + (new / rr) * p
        rr = new
    return x


loads = np.random.default_rng(0).standard_normal((csr.shape[0], options.loads))
theirs = csr.tobsr(blocksize=(3, 3))
results = {}
for name, matrix in (
    ("SciPy CSR", csr),
    ("SciPy BSR", theirs),
    ("sparse_autotune, block 3", a),
    (f"sparse_autotune, auto: block {best.block[0]}", best),
):
    matrix @ loads  # the first product finds the best variant
    begin = time.perf_counter()
    results[name] = solve(lambda p, m=matrix: m @ p, loads)
    print(f"{name:<31} {time.perf_counter() - begin:6.3f} s")

first = next(iter(results.values()))
assert all(np.allclose(first, x, rtol=1e-6, atol=1e-8) for x in results.values())
print("all the same solution, residual", f"{np.abs(csr @ first - loads).max():.1e}")
