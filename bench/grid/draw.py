"""The grids of problems: what is drawn at random, and how often.

Problem i of a grid is a function of the grid's name, the seed and i, and of nothing else, so that a grid can
be measured in parts. The seed is the commit's hash: a draw cannot be tuned to, for another commit has
another one. Sizes are drawn again until a problem fits the grid's limits, which keep it to about a second.
"""

import dataclasses
import hashlib
import random

GRIDS = ("gpu_products", "gpu_attention", "cpu_products", "cpu_attention")

# What the largest problems may have. Operations of products are those of the dense product, of attention
# those of all pairs; elements are of the dense matrix, or of Q.
LIMITS = {
    "gpu_products": {"operations": 5e11, "elements": 1 << 28, "blocks": 3_000_000},
    "gpu_attention": {"operations": 1.5e12, "elements": 1 << 27, "pairs": 1 << 28},
    "cpu_products": {"operations": 4e9, "elements": 1 << 24, "blocks": 400_000},
    "cpu_attention": {"operations": 6e9, "elements": 1 << 22, "pairs": 1 << 24},
}
# Of `operations`, what is left where the arithmetic is slower.
SHARES = {
    "gpu_products": {},
    "gpu_attention": {"f32": 0.1},
    "cpu_products": {"f64": 0.5, "f16": 0.25, "bf16": 0.25},
    "cpu_attention": {"f16": 0.4, "bf16": 0.4},
}
DTYPES = {
    "gpu_products": {"f16": 6, "bf16": 5, "f32": 3, "tf32": 3, "f64": 3},
    "gpu_attention": {"f16": 9, "bf16": 9, "f32": 2},
    "cpu_products": {"f32": 10, "f64": 4, "bf16": 4, "f16": 2},
    "cpu_attention": {"f32": 12, "bf16": 5, "f16": 3},
}
OPERATIONS = {"A*B": 6, "A^T*B": 4, "X*A": 5, "sampled": 4}
PATTERNS = {"random": 5, "banded": 3, "power-law": 3}
LAYOUTS = {"plain": 11, "columns": 3, "padded": 3, "offset": 3}
USUAL_SIZES = (256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 14336, 16384)
USUAL_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OTHER_BLOCKS = (3, 5, 6, 7, 10, 12, 20, 24, 36, 40, 48, 56, 72, 80, 96, 100, 112, 144, 160, 192, 224)
HEAD_SIZES = {32: 2, 40: 1, 64: 6, 72: 1, 80: 2, 96: 2, 112: 1, 128: 6, 160: 1, 192: 2, 256: 3}
HEADS = {1: 1, 2: 1, 3: 1, 4: 2, 6: 1, 8: 3, 12: 2, 16: 3, 24: 1, 32: 2, 40: 1}
BATCHES = {1: 6, 2: 3, 3: 1, 4: 2, 7: 1, 8: 2, 16: 1, 32: 2}
FLEX_EVERY = 40  # problems of gpu_attention for one that FlexAttention, compiled for seconds, takes part in


class Draw:
    """Random choices that are the same with every version of Python: all of them come from random()."""

    def __init__(self, *words):
        digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
        self.random = random.Random(int.from_bytes(digest, "big")).random

    def chance(self, share):
        return self.random() < share

    def log(self, least, most):
        return least * (most / least) ** self.random()

    def whole(self, least, most):
        """A whole number, as often in each octave."""
        return min(most, int(self.log(least, most + 1)))

    def pick(self, choices):
        """One of a sequence, or of a table of weights."""
        weights = choices if isinstance(choices, dict) else dict.fromkeys(choices, 1)
        at = self.random() * sum(weights.values())
        for choice, weight in weights.items():
            at -= weight
            if at < 0:
                return choice
        return choice


# ---- products ----


@dataclasses.dataclass
class Product:
    index: int
    operation: str  # of OPERATIONS
    dtype: str
    m: int  # A, or the pattern that is sampled, is m x k
    k: int
    n: int  # columns of B, rows of X; of a sampled product its depth
    block: tuple
    density: float
    pattern: str
    layout: str  # of the dense operand: columns after columns, rows with gaps, an odd address
    values: str  # fixed: never written to, the matrix is frozen; changing: other ones after the first call

    def words(self):
        return (
            f"{self.operation} {self.dtype} {self.m}x{self.k}, N {self.n}, "
            f"block {self.block[0]}x{self.block[1]}, d {self.density:.3f} {self.pattern}, "
            f"{self.layout}, {self.values}"
        )

    def strata(self):
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "block": block_class(self.block),
            "side": bucket(min(self.block), (1, 2, 8, 16, 32, 64, 128)),
            "columns": bucket(self.n, (1, 2, 16, 64, 256, 1024)),
            "density": "0.008 to 0.05"
            if self.density < 0.05
            else "0.05 to 0.15"
            if self.density < 0.15
            else "0.15 to 0.5",
            "pattern": self.pattern,
            "layout": self.layout,
            "values": self.values,
        }


def block_class(block):
    shape = "square" if block[0] == block[1] else "rectangular"
    if max(block) == 1:
        return "1x1"
    return f"{shape}, {'multiples of 16' if block[0] % 16 == block[1] % 16 == 0 else 'others'}"


def bucket(x, edges):
    """The range that x is in, in words: "16 to 31"."""
    above = [e for e in edges if e > x]
    least = max((e for e in edges if e <= x), default=0)
    if not above:
        return f"{least} and more"
    return str(least) if min(above) == least + 1 else f"{least} to {min(above) - 1}"


def draw_side(d):
    kind = d.random()
    if kind < 0.5:
        return d.pick(USUAL_BLOCKS)
    return d.pick(OTHER_BLOCKS) if kind < 0.75 else d.whole(1, 256)


def draw_size(d, side):
    """Rows or columns of the sparse matrix: half of them whole blocks."""
    size = d.pick(USUAL_SIZES) if d.chance(0.35) else d.whole(256, 16384)
    return max(256, min(16384, -(-size // side) * side)) if d.chance(0.5) else size


def draw_columns(d):
    kind = d.random()
    if kind < 0.4:
        return 1 << int(d.random() * 13)
    return d.whole(1, 4095) | 1 if kind < 0.7 else d.whole(1, 4096)


def draw_product(grid, seed, index):
    d, limit = Draw(grid, seed, index), LIMITS[grid]
    operation, dtype = d.pick(OPERATIONS), d.pick(DTYPES[grid])
    rows = draw_side(d)
    block = (rows, draw_side(d) if d.chance(1 / 3) else rows)
    density = d.log(0.008, 0.5)
    pattern, layout = d.pick(PATTERNS), d.pick(LAYOUTS)
    values = d.pick(("fixed", "changing"))
    operations = limit["operations"] * SHARES[grid].get(dtype, 1.0)
    while True:
        m, k, n = draw_size(d, block[0]), draw_size(d, block[1]), draw_columns(d)
        blocks = density * -(-m // block[0]) * -(-k // block[1])
        if 2.0 * m * n * k <= operations and m * k <= limit["elements"] and blocks <= limit["blocks"]:
            return Product(index, operation, dtype, m, k, n, block, density, pattern, layout, values)


# ---- attention ----


@dataclasses.dataclass
class Attention:
    index: int
    backward: bool
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    causal: bool
    block: int  # of the mask; 0: none
    density: float
    layout: str  # heads: (batch, heads, length, size); rows: a view of (batch, length, heads, size)
    flex: bool  # FlexAttention takes part

    def words(self):
        heads = f"{self.heads}" + (f" over {self.kv_heads}" if self.kv_heads != self.heads else "")
        length = f"{self.queries}" + (f" of {self.keys}" if self.keys != self.queries else "")
        return (
            f"{'forward+backward' if self.backward else 'forward'} {self.dtype} {self.batch}, {heads}, "
            f"{length}, {self.size}{', causal' * self.causal}"
            + (f", {self.block}-blocks d {self.density:.2f}" if self.block else "")
            + f", by {self.layout}"
        )

    def mask(self):
        return ("blocks" if self.block else "") + (
            " and causal" * self.causal if self.block else "causal" if self.causal else "none"
        )

    def strata(self):
        return {
            "operation": "forward+backward" if self.backward else "forward",
            "dtype": self.dtype,
            "head size": bucket(self.size, (32, 64, 65, 96, 128, 129, 256)),
            "side": bucket(self.keys, (16, 128, 512, 2048, 8192)),
            "mask": self.mask(),
            "heads": "grouped" if self.kv_heads != self.heads else "equal",
            "queries": "as many as keys" if self.queries == self.keys else "fewer",
            "layout": self.layout,
        }


def draw_length(d):
    return 1 << (4 + int(d.random() * 11)) if d.chance(0.3) else d.whole(16, 16384)


def draw_lengths(d):
    """Queries and keys: the same number, one query that is decoded, or fewer queries."""
    keys, kind = draw_length(d), d.random()
    return (keys if kind < 0.75 else 1 if kind < 0.87 else d.whole(16, keys)), keys


def draw_heads(d):
    heads = d.pick(HEADS)
    shares = d.pick([s for s in (2, 4, 8) if heads % s == 0] or [1]) if d.chance(0.35) else 1
    return heads, heads // shares


def draw_attention(grid, seed, index):
    d, limit = Draw(grid, seed, index), LIMITS[grid]
    dtype, size, layout = d.pick(DTYPES[grid]), d.pick(HEAD_SIZES), d.pick({"heads": 3, "rows": 2})
    backward, causal, masked = d.chance(0.45), d.chance(0.4), d.chance(0.4)
    flex = grid.startswith("gpu") and index % FLEX_EVERY == FLEX_EVERY - 1
    if flex:
        dtype, size, masked = d.pick(("f16", "bf16")), d.pick((64, 128)), True
    operations = limit["operations"] * SHARES[grid].get(dtype, 1.0)

    def fits(queries, keys, batch, heads):
        work = 4.0 * batch * heads * queries * keys * size * (3.5 if backward and queries > 1 else 1)
        few = batch * heads * keys * size <= limit["elements"] and queries * keys <= limit["pairs"]
        return work <= operations and few

    queries = keys = batch = heads = 1 << 30
    while not fits(queries, keys, batch, heads):
        queries, keys = draw_lengths(d)
        if flex:
            queries = keys = max(512, keys // 128 * 128)
        for _ in range(20):  # long ones are kept where few heads make room for them
            batch, (heads, kv_heads) = d.pick(BATCHES), draw_heads(d)
            if fits(queries, keys, batch, heads):
                break
    same = queries == keys
    blocks = [128] if flex else [block for block in (16, 32, 64, 128) if keys >= 4 * block]
    block = d.pick(blocks) if masked and same and blocks else 0
    return Attention(
        index=index,
        backward=backward and queries > 1,
        dtype=dtype,
        batch=batch,
        heads=heads,
        kv_heads=heads if flex else kv_heads,
        queries=queries,
        keys=keys,
        size=size,
        causal=causal and same,
        block=block,
        density=d.log(0.05, 0.6) if block else 1.0,
        layout=layout,
        flex=flex,
    )


def problem(grid, seed, index):
    return (draw_attention if grid.endswith("attention") else draw_product)(grid, seed, index)


def generator_seed(grid, seed, index):
    """For NumPy and torch, which make patterns and operands."""
    return int.from_bytes(hashlib.sha256(f"{grid} {seed} {index} operands".encode()).digest()[:6], "big")


# ---- patterns (NumPy) ----

FEW_BLOCKS = 1 << 24  # of a grid whose every block gets its own random number


def draw_pattern(np, rng, p):
    """Row pointers and columns of the stored blocks."""
    rows, cols = -(-p.m // p.block[0]), -(-p.k // p.block[1])
    if p.pattern == "banded":
        return banded(np, rows, cols, p.density)
    share = np.full(rows, p.density)
    if p.pattern == "power-law":
        weights = 1.0 / np.arange(1, rows + 1)
        share = np.minimum(0.95, weights[rng.permutation(rows)] / weights.mean() * p.density)
    return scattered(np, rng, share, cols)


def banded(np, rows, cols, density):
    """Every block row has a run of the same length around the diagonal, less what the edges cut off."""
    width = max(1, round(density * cols))
    first = (np.arange(rows) * cols / rows - width / 2 + 0.5).astype(np.int64)
    begin, end = np.clip(first, 0, cols - 1), np.clip(first + width, 1, cols)
    row_ptr = np.concatenate([[0], np.cumsum(end - begin)])
    return row_ptr, np.arange(row_ptr[-1]) - np.repeat(row_ptr[:-1] - begin, end - begin)


def scattered(np, rng, share, cols):
    """A block of row i is stored with probability share[i]; at least one block is."""
    rows = len(share)
    if rows * cols <= FEW_BLOCKS:
        flat = np.flatnonzero((rng.random((rows, cols), dtype=np.float32) < share[:, None]).ravel())
    else:  # drawn with repetition, a few more
        count = np.round(-np.log1p(-share) * cols).astype(np.int64)
        flat = np.unique(np.repeat(np.arange(rows) * cols, count) + rng.integers(0, cols, int(count.sum())))
    if len(flat) == 0:
        flat = rng.integers(0, rows * cols, 1)
    row_ptr = np.concatenate([[0], np.cumsum(np.bincount(flat // cols, minlength=rows))])
    return row_ptr, flat % cols


def draw_mask(np, rng, p):
    """Which blocks of the scores are kept; those at the diagonal are, so that every query sees something."""
    count = -(-p.keys // p.block)
    kept = rng.random((count, count)) < p.density
    np.fill_diagonal(kept, True)
    return kept


def describe(problem):
    found = dataclasses.asdict(problem)
    return {
        k: list(v) if isinstance(v, tuple) else round(v, 4) if isinstance(v, float) else v
        for k, v in found.items()
    }
