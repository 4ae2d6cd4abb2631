"""What a right result is: f64 references of some rows, and how far rounding may lead away from them.

The bounds are those of docs/internals/check.md and src/ops/attention_check.h. Peers may also round partial
sums to the dtype of the result, as cuBLAS does by default, and are given a few times the bound of attention.
"""

import math

UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
TINY = {"f64": 0.0, "f32": 2.0**-150, "tf32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
LOOKED_AT = 48  # rows of a product; queries of a head
MOST_PAIRS = {"cuda": 1 << 26, "cpu": 1 << 21}  # of a head whose dK and dV are worked out
PEER = 8.0  # a peer whose error is so many times the bound is wrong


def kinds(torch):
    return {
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f32": torch.float32,
        "tf32": torch.float32,
        "f64": torch.float64,
    }


def sum_loss(dtype, cuda, depth, elements):
    """What a sum of `depth` products loses, in units of the root of the sum of their squares."""
    n = depth.double() + 8
    u = UNIT["f64" if dtype == "f64" else "f32"] * (2 if dtype == "f64" else 1)  # 2: so does the reference
    h = n / 16 if cuda and dtype in ("f16", "bf16") else n / 8 if dtype == "tf32" else n * 0
    loss = u * ((6 + 0.3 * math.log(max(elements, 1))) * n.sqrt() + 2 * h)
    return loss + (4 * 2.0**-10 if dtype == "tf32" else 0)


class Expected:
    """Some elements of a result: `take` finds them in what a call gave."""

    def __init__(self, want, bound, slack, take):
        self.want, self.bound, self.slack, self.take = want, bound, slack, take

    def excess(self, got, peer=False):
        """The largest error over its bound; not finite: NaN somewhere."""
        got = self.take(got)
        if got.numel() == 0:
            return 0.0
        bound = self.bound + self.slack if peer else self.bound
        worst = ((got.double() - self.want).abs() / bound).max().item()
        return worst if math.isfinite(worst) else math.inf


def product(torch, dtype, sparse_rows, dense, take):
    """sparse_rows (r, depth) of the sparse matrix, in full, times dense (depth, n)."""
    a, b = sparse_rows.double(), dense.double()
    want, norm = a @ b, ((a * a) @ (b * b)).sqrt()
    loss = sum_loss(dtype, a.is_cuda, (a != 0).sum(1, keepdim=True), want.numel()) * norm
    return rounded(dtype, want, loss, norm, take)


def sampled(torch, dtype, x, y, inside, take):
    """Blocks (blocks, rows, depth) times (blocks, depth, columns); `inside`: what is not padding."""
    x, y = x.double(), y.double()
    want, norm = (x @ y) * inside, ((x * x) @ (y * y)).sqrt() * inside
    depth = torch.tensor(x.shape[2], device=x.device)
    return rounded(dtype, want, sum_loss(dtype, x.is_cuda, depth, want.numel()) * norm, norm, take)


def rounded(dtype, want, loss, norm, take):
    bound = loss + 1.001 * UNIT[dtype] * (want.abs() + loss) + TINY[dtype] + 1e-300
    return Expected(want, bound, 4 * UNIT[dtype] * norm, take)


# ---- attention ----


class Head:
    """One head of queries in f64: its scores and weights, and what they lose."""

    def __init__(self, torch, p, q, k, keep):
        self.u, self.low, self.tiny = UNIT["f32"], UNIT[p.dtype], TINY[p.dtype]
        truncated = 1.0 if q.is_cuda and p.dtype in ("f16", "bf16") else 0.0  # additions of tensor cores
        self.dot = (
            8 + truncated * p.size / 8
        ) * self.u  # of a product over the head's size, per product of norms
        self.scale, self.p = p.size**-0.5, p
        scores = self.scale * (q @ k.T)
        if keep is not None:
            scores = scores.masked_fill(~keep, -math.inf)
        self.lse = torch.logsumexp(scores, 1, keepdim=True)
        self.weights = (scores - self.lse).exp()
        magnitude = self.scale * q.norm(dim=1).max() * k.norm(dim=1).max()
        self.weight = self.low + magnitude * self.dot + (magnitude + self.lse.abs().max() + 8) * self.u
        self.sum = (8 * (p.keys + 8) ** 0.5 + truncated * p.keys / 8) * self.u

    def bound(self, walk, want, depth, largest):
        """`walk`: the root of the sum of squares of what was summed."""
        e = self.weight + self.sum
        return (
            8 * (e * walk + depth**0.5 * self.tiny * largest)
            + self.tiny
            + (1.001 * UNIT[self.p.dtype] + e) * want.abs()
            + 1e-300
        )

    def output(self, v):
        want, largest = self.weights @ v, v.abs().max()
        walk = (self.weights**2).sum(1, keepdim=True).sqrt() * largest
        return want, self.bound(walk, want, self.p.keys, largest)

    def scores_gradient(self, v, out, grad):
        """dS, and by how much each of its elements may be off beside what its weight is."""
        delta = (out * grad).sum(1, keepdim=True)
        ds = self.weights * (grad @ v.T - delta)
        norms = grad.norm(dim=1, keepdim=True)
        dots = norms * v.norm(dim=1).max() * self.dot
        walk = 8 * (self.p.keys + 1) ** 0.5 * self.u * v.norm(dim=1).max()
        common = norms * (out.norm(dim=1, keepdim=True) * (UNIT[self.p.dtype] + self.dot) + walk)
        return ds, self.weights * dots, self.weights * common


def forward(torch, p, q, k, v, keep, places):
    """Some queries of some heads; `places` is a list of batch, head and rows."""
    wants, bounds = [], []
    for b, h, rows in places:
        kv = h * p.kv_heads // p.heads
        head = Head(torch, p, q[b, h, rows].double(), k[b, kv].double(), None if keep is None else keep[rows])
        want, bound = head.output(v[b, kv].double())
        wants.append(want)
        bounds.append(bound)

    def take(out):
        return torch.cat([out[b, h, rows] for b, h, rows in places])

    return [Expected(torch.cat(wants), torch.cat(bounds), 0.0, take)]


def backward(torch, p, q, k, v, grad, keep, rows):
    """Gradients of the last head of keys: dQ of some rows, and where it is small enough all of dK and dV."""
    b, kv, shares = p.batch - 1, p.kv_heads - 1, p.heads // p.kv_heads
    whole = p.queries * p.keys * shares <= MOST_PAIRS["cuda" if q.is_cuda else "cpu"]
    some = slice(None) if whole else rows
    keys, values = k[b, kv].double(), v[b, kv].double()
    sums = {"dk": [0, 0], "dv": [0, 0]}
    found = []
    for h in range(kv * shares, p.heads) if whole else [p.heads - 1]:
        queries, back = q[b, h, some].double(), grad[b, h, some].double()
        head = Head(torch, p, queries, keys, None if keep is None else keep[some])
        out = head.weights @ values
        ds, own, common = head.scores_gradient(values, out, back)
        e, largest = head.weight + head.sum + head.low, keys.abs().max() * head.scale
        want = head.scale * (ds @ keys)
        walk = ((e * ds) ** 2 + own**2).sum(1, keepdim=True).sqrt() * largest
        bound = 8 * walk + common.sum(1, keepdim=True) * largest
        found.append(row_of(torch, p, head, want, bound, 0, b, h, some))
        if whole:
            reach = queries.abs().max() * head.scale
            sums["dk"][0] += head.scale * (ds.T @ queries)
            sums["dk"][1] += ((e * ds) ** 2 + own**2 + common**2).sum(0)[:, None] * reach**2
            sums["dv"][0] += head.weights.T @ back
            sums["dv"][1] += ((e * head.weights) ** 2).sum(0)[:, None] * back.abs().max() ** 2
    if whole:
        for at, name in ((1, "dk"), (2, "dv")):
            want, squares = sums[name]
            found.append(row_of(torch, p, head, want, 8 * squares.sqrt(), at, b, kv, slice(None)))
    return found


def row_of(torch, p, head, want, bound, at, b, h, rows):
    depth = max(p.keys, p.queries * p.heads // p.kv_heads)
    bound = (
        bound
        + (1.001 * UNIT[p.dtype] + head.weight + head.sum) * want.abs()
        + 8 * depth**0.5 * head.tiny * 4
        + 1e-300
    )
    return Expected(want, bound, 0.0, lambda gradients: gradients[at][b, h, rows])
