"""Products of a grid: operands, the call as a user of the Python package writes it, and its peers.

Peers multiply S*D: S is A or its transpose, stored as they like it best before any time is taken; D is the
dense operand as it is, transposed by its strides where the product is from the left.
"""

import draw
import numpy as np
import torch
import verify

import sparse_autotune as sa

SCIPY_RATE = 8e9  # operations a second that SciPy never reaches on these problems
SAMPLED_ELEMENTS = 20000  # of a sampled product that are looked at


def refuse(why):
    raise NotImplementedError(why)


class Product:
    """One problem with its operands on a device."""

    def __init__(self, p, grid, seed, device):
        self.p, self.device, self.cuda = p, device, device != "cpu"
        number = draw.generator_seed(grid, seed, p.index)
        self.rng = np.random.default_rng(number)
        self.generator = torch.Generator(device=device).manual_seed(number)
        self.dtype = verify.kinds(torch)[p.dtype]
        self.row_ptr, self.col_idx = draw.draw_pattern(np, self.rng, p)
        self.transposed = p.operation in ("A^T*B", "X*A")
        self.values = self.new_values()
        if p.operation == "sampled":
            self.x, self.y = self.dense(p.m, p.n), self.dense(p.n, p.k)
        else:
            rows = p.m if self.transposed else p.k
            self.b = self.dense(p.n, rows) if p.operation == "X*A" else self.dense(rows, p.n)
        self.a = sa.BsrMatrix(self.row_ptr, self.col_idx, self.values, (p.m, p.k))
        if p.values == "fixed" and p.operation != "sampled":
            self.a.freeze()
        self.cached = {}

    # ---- operands ----

    def uniform(self, *shape):
        """In [-1, 1], never zero."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        made = torch.rand(*shape, generator=self.generator, device=self.device, dtype=wide)
        made = made.mul_(2).sub_(1).to(self.dtype)
        return made.masked_fill_(made == 0, 0.5)

    def apart(self, x):
        """A contiguous copy at an address that is a multiple of the element alone."""
        memory = torch.empty(x.numel() + 1, device=self.device, dtype=x.dtype)
        return memory[1:].view(x.shape).copy_(x)

    def new_values(self):
        made = self.uniform(len(self.col_idx), *self.p.block)
        return self.apart(made) if self.p.layout == "offset" else made

    def dense(self, rows, cols):
        layout = self.p.layout
        if layout == "columns":
            return self.uniform(cols, rows).t()
        if layout == "padded":
            return self.uniform(rows, cols + 3)[:, :cols]
        made = self.uniform(rows, cols)
        return self.apart(made) if layout == "offset" else made

    def change_values(self):
        if self.p.values == "changing" and self.p.operation != "sampled":
            self.values.copy_(self.uniform(*self.values.shape))
        elif self.p.values == "changing":
            self.x.copy_(self.uniform(*self.x.shape))

    def rows_of_blocks(self):
        return np.repeat(np.arange(len(self.row_ptr) - 1), np.diff(self.row_ptr))

    def spread(self, values):
        """The matrix with its zeros, (m, k)."""
        (br, bc), rows, cols = self.p.block, len(self.row_ptr) - 1, -(-self.p.k // self.p.block[1])
        whole = torch.zeros(rows, br, cols, bc, device=self.device, dtype=values.dtype)
        at = torch.from_numpy(self.rows_of_blocks()).to(self.device)
        to = torch.from_numpy(np.asarray(self.col_idx)).to(self.device)
        whole.permute(0, 2, 1, 3)[at, to] = values
        return whole.view(rows * br, cols * bc)[: self.p.m, : self.p.k]

    # ---- ours ----

    def ours(self):
        p, a = self.p, self.a
        if p.operation == "sampled":
            x, y = self.x, self.y
            return lambda: sa.sampled_matmul(x, y, a).values
        b = self.b
        if p.operation == "X*A":
            return lambda: b @ a
        a = a.T if self.transposed else a
        return lambda: a @ b

    def elsewhere(self):
        """Other results to look at: the same product into memory that holds NaN."""
        return [(self.poisoned(), self.expected())]

    def poisoned(self):
        p = self.p
        if p.operation == "sampled":
            out = self.a.with_values(torch.full_like(self.values, torch.nan))
            return sa.sampled_matmul(self.x, self.y, self.a, out=out).values
        rows, a = (p.k if self.transposed else p.m), self.a.T if p.operation == "A^T*B" else self.a
        shape = (p.n, rows) if p.operation == "X*A" else (rows, p.n)
        out = torch.full(shape, torch.nan, device=self.device, dtype=self.dtype)
        return sa.matmul(self.b, a, out=out) if p.operation == "X*A" else sa.matmul(a, self.b, out=out)

    def variants(self):
        plans = self.a._plans._first.values()
        return sorted({plan.info().variant.decode() for plan in plans})

    # ---- what is right ----

    def expected(self):
        if self.p.operation == "sampled":
            return [self.expected_blocks()]
        s = self.sparse_rows()
        rows = torch.from_numpy(
            np.sort(self.rng.choice(s.shape[0], min(verify.LOOKED_AT, s.shape[0]), replace=False))
        ).to(self.device)
        right = self.p.operation == "X*A"
        take = (lambda out: out.t()[rows]) if right else (lambda out: out[rows])
        return [verify.product(torch, self.p.dtype, s[rows], self.b.t() if right else self.b, take)]

    def sparse_rows(self):
        whole = self.spread(self.values)
        return whole.t() if self.transposed else whole

    def expected_blocks(self):
        (br, bc), p = self.p.block, self.p
        count = min(len(self.col_idx), max(8, SAMPLED_ELEMENTS // (br * bc)))
        some = np.sort(self.rng.choice(len(self.col_idx), count, replace=False))
        at = self.rows_of_blocks()[some][:, None] * br + np.arange(br)
        to = np.asarray(self.col_idx)[some][:, None] * bc + np.arange(bc)
        inside = torch.from_numpy((at < p.m)[:, :, None] & (to < p.k)[:, None, :]).to(self.device)
        x = self.x[torch.from_numpy(np.minimum(at, p.m - 1)).to(self.device)]
        y = self.y[:, torch.from_numpy(np.minimum(to, p.k - 1)).to(self.device)].permute(1, 0, 2)
        some = torch.from_numpy(some).to(self.device)
        return verify.sampled(torch, p.dtype, x, y, inside, lambda out: out[some])

    # ---- floor ----

    def work(self):
        p, size = self.p, self.values.element_size()
        inside = self.p.m * self.p.k / (len(self.row_ptr) - 1) / -(-p.k // p.block[1])
        operations = 2.0 * inside * len(self.col_idx) * p.n
        return operations, float(size * (self.values.numel() + p.n * (p.m + p.k)))

    # ---- peers ----

    def peers(self):
        """Name and maker of each peer's call, the one that promises most first."""
        if self.cuda:
            found = {"dense_cublas": self.dense_torch, "cusparse_csr": self.csr_torch}
            if self.p.operation != "sampled":
                found.update(
                    torch_bsr=self.bsr_torch, cusparse_bsr=self.bsr_cusparse, cusparse_ell=self.ell_cusparse
                )
            return found
        found = {"dense_mkl": self.dense_torch, "dense_openblas": self.dense_numpy, "mkl_csr": self.csr_torch}
        if self.p.operation != "sampled":
            found.update(mkl_bsr=self.bsr_torch, scipy_csr=self.csr_scipy, scipy_bsr=self.bsr_scipy)
        return found

    def last_peers(self):
        """Those that are asked where all others have refused."""
        return {}

    def keep(self, name, make):
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]

    def dense_matrix(self):
        return self.keep("dense", lambda: self.spread(self.values).contiguous())

    def dense_torch(self):
        p = self.p
        if p.operation == "sampled":
            x, y = self.x, self.y
            return lambda: torch.mm(x, y)
        a, b = self.dense_matrix(), self.b
        if p.operation == "X*A":
            return lambda: torch.mm(b, a)
        a = a.t() if self.transposed else a
        return lambda: torch.mm(a, b)

    def right_hand(self):
        """D of S*D."""
        return self.b.t() if self.p.operation == "X*A" else self.b

    def as_result(self, call):
        return (lambda: call().t()) if self.p.operation == "X*A" else call

    def sparse(self, dense):
        csr = dense.contiguous().to_sparse_csr()
        return torch.sparse_csr_tensor(
            csr.crow_indices().int(), csr.col_indices().int(), csr.values(), csr.shape, device=self.device
        )

    def csr_torch(self):
        if self.p.operation == "sampled":
            csr = self.sparse(self.spread(torch.ones_like(self.values)))
            x, y = self.x, self.y
            return lambda: torch.sparse.sampled_addmm(csr, x, y, beta=0.0)
        csr, d = self.sparse(self.sparse_rows()), self.right_hand()
        return self.as_result(lambda: csr @ d)

    def blocks(self):
        """S as blocks: row pointers, columns, values, and its shape in whole blocks."""
        (br, bc), rows = self.p.block, len(self.row_ptr) - 1
        cols = -(-self.p.k // bc)
        values = self.values
        if self.p.m % br or self.p.k % bc:  # what others do not know to ignore
            values = values.clone()
            at, to = self.rows_of_blocks(), np.asarray(self.col_idx)
            for edge, size, last in (
                (at == rows - 1, self.p.m - (rows - 1) * br, 1),
                (to == cols - 1, self.p.k - (cols - 1) * bc, 2),
            ):
                some = torch.from_numpy(np.flatnonzero(edge)).to(self.device)
                part = values[some]
                part.narrow(last, size, part.shape[last] - size).zero_()
                values[some] = part
        if not self.transposed:
            return self.row_ptr, np.asarray(self.col_idx), values.contiguous(), (rows, cols), (br, bc)
        order = np.argsort(self.col_idx, kind="stable")
        row_ptr = np.concatenate([[0], np.cumsum(np.bincount(self.col_idx, minlength=cols))])
        order_there = torch.from_numpy(order).to(self.device)
        values = values[order_there].transpose(1, 2).contiguous()
        return row_ptr, self.rows_of_blocks()[order], values, (cols, rows), (bc, br)

    def padded(self, rows):
        """D with zeros below, where S has whole blocks."""
        d = self.right_hand()
        if d.shape[0] == rows:
            return d
        return torch.cat([d, torch.zeros(rows - d.shape[0], d.shape[1], device=self.device, dtype=d.dtype)])

    def cut(self, call):
        """The result without the rows that padding has added."""
        rows = self.p.k if self.transposed else self.p.m
        return self.as_result(lambda: call()[:rows])

    def bsr_torch(self):
        row_ptr, col_idx, values, grid, block = self.keep("blocks", self.blocks)
        shape = (grid[0] * block[0], grid[1] * block[1])
        bsr = torch.sparse_bsr_tensor(
            torch.from_numpy(row_ptr).int().to(self.device),
            torch.from_numpy(col_idx).int().to(self.device),
            values,
            shape,
        )
        d = self.padded(shape[1])
        return self.cut(lambda: bsr @ d)

    def bsr_cusparse(self):
        import cusparse

        return self.cut(cusparse.bsr(torch, *self.keep("blocks", self.blocks), self.padded))

    def ell_cusparse(self):
        import cusparse

        if self.p.dtype == "f32":
            refuse("Blocked-ELL rounds f32 to TF32")
        return self.cut(cusparse.ell(torch, np, *self.keep("blocks", self.blocks), self.padded))

    # ---- peers of NumPy and SciPy ----

    def host(self, x):
        return x.numpy() if self.p.dtype in ("f32", "f64") else refuse("NumPy has no such product")

    def dense_numpy(self):
        if self.p.operation == "sampled":
            x, y = self.host(self.x), self.host(self.y)
            return lambda: torch.from_numpy(x @ y)
        a, b = self.host(self.dense_matrix()), self.host(self.b)
        if self.p.operation == "X*A":
            return lambda: torch.from_numpy(b @ a)
        a = a.T if self.transposed else a
        return lambda: torch.from_numpy(a @ b)

    def csr_scipy(self):
        import scipy.sparse

        s, d = scipy.sparse.csr_array(self.host(self.sparse_rows())), self.host(self.right_hand())
        return self.as_result(lambda: torch.from_numpy(s @ d))

    def bsr_scipy(self):
        import scipy.sparse

        row_ptr, col_idx, values, grid, block = self.keep("blocks", self.blocks)
        shape = (grid[0] * block[0], grid[1] * block[1])
        s = scipy.sparse.bsr_array((self.host(values), col_idx, row_ptr), shape=shape, blocksize=block)
        d = self.host(self.padded(shape[1]))
        return self.cut(lambda: torch.from_numpy(s @ d))

    def least_seconds(self, name):
        """What a peer takes at least, where that is known: it is left out if that is far too much."""
        return self.work()[0] / SCIPY_RATE if name.startswith("scipy") else 0.0

    def compare(self, expected, name, got):
        """A peer of a sampled product has it in its own form."""
        if self.p.operation != "sampled":
            return expected[0].excess(got, True)
        dense = got.to_dense() if got.layout == torch.sparse_csr else got
        return expected[0].excess(self.gather(dense), True)

    def gather(self, dense):
        """The stored blocks of a dense matrix."""
        (br, bc), rows = self.p.block, len(self.row_ptr) - 1
        cols = -(-self.p.k // bc)
        whole = torch.zeros(rows * br, cols * bc, device=self.device, dtype=dense.dtype)
        whole[: self.p.m, : self.p.k] = dense
        at = torch.from_numpy(self.rows_of_blocks()).to(self.device)
        to = torch.from_numpy(np.asarray(self.col_idx)).to(self.device)
        return whole.view(rows, br, cols, bc).permute(0, 2, 1, 3)[at, to]
