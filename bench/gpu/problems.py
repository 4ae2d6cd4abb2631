"""The problem sets of bench/gpu_check: sizes, patterns, rivals, and what each row should reach.

A pattern is made here and written as a Matrix Market file with one entry for each block, so that the race,
the graphs of bench_gpu and PyTorch all multiply by the same blocks. It is the same for the same problem,
every time.
"""

import dataclasses
import math
import random
import zlib


@dataclasses.dataclass
class Problem:
    name: str
    m: int
    n: int
    k: int
    block: int
    dtype: str = "f16"
    density: float = 0.125
    op: str = "matmul"
    # equal, powerlaw (the heaviest 50 times the median), powerlaw_evened, heavy (4 rows 8 times heavier)
    rows: str = "equal"
    overlap: float = -1  # share of a row's columns that the next row has too; below 0: as chance has it
    tf32: bool = False
    transpose: bool = False
    layout: str = "row,row"
    measure: str = "warm"
    rivals: tuple = ()  # triton, dense
    must: dict = dataclasses.field(default_factory=dict)  # ratio -> least value
    aim: dict = dataclasses.field(default_factory=dict)
    libraries: bool = False  # whether all libraries are timed by graphs too, and not by the race alone
    like: str = ""  # the row that `equal_rows` and `row_major` compare with

    def shrunk(self, factor):
        """The same problem, smaller: to try the script out."""

        def smaller(size):
            return max(self.block * 8, size // factor // self.block * self.block)

        return dataclasses.replace(self, m=smaller(self.m), k=smaller(self.k), n=max(1, self.n // factor))

    # ---- the pattern ----

    def stored(self):
        """Rows and columns of the matrix that is stored in blocks."""
        if self.op == "sampled":
            return self.m, self.n
        return (self.k, self.m) if self.transpose else (self.m, self.k)

    def blocks(self):
        """The block columns of each block row."""
        rows, cols = (side // self.block for side in self.stored())
        pick = random.Random(
            zlib.crc32(f"{self.m} {self.k} {self.block} {self.density} {self.rows} {self.overlap}".encode())
        )
        counts = row_counts(self.rows, rows, cols, self.density)
        pick.shuffle(counts)
        lists, before = [], []
        for count in counts:
            if self.overlap < 0 or not before:
                columns = pick.sample(range(cols), count)
            else:
                kept = pick.sample(before, min(count, round(self.overlap * len(before))))
                others = sorted(set(range(cols)) - set(before)) or list(range(cols))
                columns = kept + pick.sample(others, min(count - len(kept), len(others)))
            before = sorted(columns)
            lists.append(before)
        return lists

    def write(self, path):
        rows, cols = self.stored()
        lists = self.blocks()
        with open(path, "w") as f:
            f.write(
                f"%%MatrixMarket matrix coordinate pattern general\n{rows} {cols} {sum(map(len, lists))}\n"
            )
            for i, columns in enumerate(lists):
                f.writelines(f"{i * self.block + 1} {j * self.block + 1}\n" for j in columns)

    def key(self):
        """Problems with the same pattern have the same."""
        return self.stored(), self.block, self.density, self.rows, self.overlap

    # ---- the command line ----

    def race_words(self, matrix):
        words = [
            "--matrix",
            str(matrix),
            "--block",
            str(self.block),
            "--dtype",
            self.dtype,
            "--op",
            self.op,
            "--layout",
            self.layout,
            "--measure",
            self.measure,
        ]
        words += ["-k", str(self.k)] if self.op == "sampled" else ["-n", str(self.n)]
        words += ["--transpose"] if self.transpose else []
        words += ["--allow-tf32"] if self.tf32 else []
        return words

    def job_line(self, number, matrix, variants, more=""):
        """For bench_gpu."""
        b, c = (int(order == "col") for order in self.layout.split(","))
        return (
            f"id={number} op={self.op} m={self.m} n={self.n} k={self.k} block_rows={self.block} "
            f"block_cols={self.block} "
            f"dtype={self.dtype} transpose={int(self.transpose)} tf32={int(self.tf32)} col_b={b} col_c={c} "
            f"matrix={matrix} variants={','.join(variants)}{more}\n"
        )

    def rival_job(self, number, matrix):
        """For rivals.py. Rows that are not judged by Triton's time are searched less."""
        judged = any(name.startswith("triton") for name in self.must)
        return {
            "id": number,
            "search": 30 if judged else 8,
            "transpose": self.transpose,
            "layout": self.layout,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "block": self.block,
            "dtype": self.dtype,
            "tf32": self.tf32,
            "matrix": str(matrix),
            "rivals": list(self.rivals),
        }


def row_counts(kind, rows, cols, density):
    """How many blocks each row has, before the rows are shuffled."""
    if kind.startswith("powerlaw"):  # the median row, by rank, has a fiftieth of the first
        exponent = math.log(50) / math.log(rows / 2)
        heaviest = cols // 50 * 50 or cols
        counts = [max(1, round(heaviest * (rank + 1) ** -exponent)) for rank in range(rows)]
        return counts if kind == "powerlaw" else evened(sum(counts), rows)
    total = round(density * rows * cols)
    if kind == "heavy":
        light = total / (rows - 4 + 4 * 8)
        heavy = min(cols, round(8 * light))
        return [heavy] * 4 + evened(total - 4 * heavy, rows - 4)
    return evened(total, rows)


def evened(total, rows):
    return [total * (i + 1) // rows - total * i // rows for i in range(rows)]


def square(dtype, block, side=4096, density=0.125, more_name="", **more):
    name = f"{dtype} {side}^3 block {block}" + (f" density {density}" if density != 0.125 else "") + more_name
    return Problem(name, side, side, side, block, dtype=dtype, density=density, **more)


# What is asked of the squares at density 0.125: times faster than dense cuBLAS and than Triton, and the aim
# of the first.
SQUARES = {
    (4096, 16): (1.5, 1.05, 1.8),
    (4096, 32): (2.7, 1.15, 3.0),
    (4096, 64): (4.5, 1.2, 4.9),
    (4096, 128): (5.6, 1.5, 6.4),
    (8192, 32): (3.3, 1.05, 3.5),
    (8192, 64): (6.0, 1.2, 6.4),
    (8192, 128): (7.4, 1.3, 8.0),
}
# of the f16 row-major time: at most 8 % longer
NEAR = {"must": {"row_major": 1 / 1.08}, "aim": {"row_major": 1}}


def all_problems():
    return squares() + densities() + like_row_major() + others() + few_columns() + skewed()


def squares():
    rows = []
    for (side, block), (dense, triton, aim) in SQUARES.items():
        must = {"dense_cublas": dense, "triton_bsr": triton}
        if side == 4096:
            must["triton_bsr_portable"] = 0.75
        rows.append(
            square(
                "f16",
                block,
                side,
                rivals=("triton", "dense"),
                must=must,
                aim={"dense_cublas": aim, "triton_bsr_portable": 1.0},
                libraries=side == 4096,
            )
        )
    for block in (16, 32, 64, 128):
        must = {"triton_bsr_portable": 0.75, **(NEAR["must"] if block >= 64 else {})}
        rows.append(
            square(
                "bf16",
                block,
                rivals=("triton", "dense"),
                must=must,
                aim={"triton_bsr_portable": 1.0, **NEAR["aim"]},
                like=f"f16 4096^3 block {block}",
            )
        )
    return rows


def densities():
    asked = [
        (64, 0.05, 7, 8),
        (64, 0.25, 2.5, 2.7),
        (64, 0.5, 1.4, 1.5),
        (128, 0.25, 3.3, 3.6),
        (128, 0.5, 1.8, 1.9),
    ]
    return [
        square(
            "f16",
            block,
            density=density,
            rivals=("triton", "dense"),
            must={"dense_cublas": least},
            aim={"dense_cublas": aim},
        )
        for block, density, least, aim in asked
    ]


def like_row_major():
    """The backward pass, and x * W^T: B and C by columns."""
    rows = []
    for block in (16, 32, 64, 128):
        near = dict(NEAR if block >= 64 else {}, like=f"f16 4096^3 block {block}", rivals=("dense",))
        rows.append(square("f16", block, more_name=", transposed", transpose=True, **near))
        rows.append(square("f16", block, more_name=", by columns", layout="col,col", **near))
    return rows


def others():
    """The sampled product, f32, TF32, and f64 with small blocks."""
    rows = [
        square("f16", block, more_name=", sampled", op="sampled", rivals=("dense",), **asked)
        for block, asked in (
            (16, {}),
            (32, {}),
            (64, {"must": {"dense_cublas": 3.5}, "aim": {"dense_cublas": 4.5}}),
            (128, {"must": {"dense_cublas": 4.5}, "aim": {"dense_cublas": 5.5}}),
        )
    ]
    rows.append(square("f32", 64, rivals=("dense",), must={"cusparse_bsr": 3}, libraries=True))
    rows.append(
        square(
            "f32",
            64,
            more_name=", TF32",
            rivals=("dense",),
            must={"dense_cublas": 4, "cusparse_bsr": 8},
            aim={"dense_cublas": 5},
            tf32=True,
            like="f32 4096^3 block 64",
        )
    )
    for more_name, more in ((", by columns", {}), (", by columns, transposed", {"transpose": True})):
        rows.append(
            square(
                "f32",
                64,
                more_name=", TF32" + more_name,
                rivals=("dense",),
                tf32=True,
                layout="col,col",
                **more,
            )
        )
    for block in (4, 8):  # 2^18 blocks: 34 and 134 MB of values beside 34 MB of B and C
        rows.append(
            Problem(
                f"f64 65536x32x65536 block {block}, 2^18 blocks",
                65536,
                32,
                65536,
                block,
                dtype="f64",
                density=2.0**18 / (65536 // block) ** 2,
                must={"cusparse_bsr": 2},
                libraries=True,
            )
        )
    return rows


def few_columns():
    rows = []
    for n, least, aim in ((16, 7, 9), (64, 5.5, 7), (256, 4.4, 6)):
        must = {"dense_cublas": least, **({"triton_bsr": 1.0} if n < 256 else {})}
        rows.append(
            Problem(
                f"f16 14336x{n}x4096 block 64 density 0.1",
                14336,
                n,
                4096,
                64,
                density=0.1,
                rivals=("triton", "dense"),
                must=must,
                aim={"dense_cublas": aim},
            )
        )
    for measure in ("warm", "cold"):
        for n in (1, 8, 16):
            warm = {"must": {"hbm": 0.8}, "rivals": ("dense",)} if measure == "warm" else {}
            rows.append(
                Problem(
                    f"f16 57344x{n}x16384 block 64 density 0.1" + (", cold" if measure == "cold" else ""),
                    57344,
                    n,
                    16384,
                    64,
                    density=0.1,
                    measure=measure,
                    **warm,
                )
            )
    return rows


def skewed():
    """Rows that share columns, rows that are heavier than others."""
    rows = [
        square(
            "f16",
            64,
            8192,
            more_name=", half of the columns shared",
            overlap=0.5,
            rivals=("triton", "dense"),
            must={"dense_cublas": 6.3},
            aim={"dense_cublas": 6.8},
        ),
        square(
            "f16",
            64,
            more_name=", 4 rows 8 times heavier",
            rows="heavy",
            rivals=("triton", "dense"),
            must={"equal_rows": 1 / 1.4},
            aim={"equal_rows": 1 / 1.25},
            like="f16 4096^3 block 64",
        ),
    ]
    even = "f16 16384x4096x16384 block 64, equal rows"
    rows.append(Problem(even, 16384, 4096, 16384, 64, rows="powerlaw_evened"))
    rows.append(
        Problem(
            "f16 16384x4096x16384 block 64, powerlaw rows",
            16384,
            4096,
            16384,
            64,
            rows="powerlaw",
            must={"equal_rows": 0.7},
            like=even,
        )
    )
    return rows


# ---- what the tuner is asked to choose for ----


def choice_problems():
    """Sixty: five sizes, four blocks, three dtypes; densities go round, so that each meets each of the
    others."""
    sizes = [(4096, 4096, 4096), (2048, 2048, 2048), (8192, 512, 2048), (14336, 64, 4096), (1024, 256, 1024)]
    found = []
    for i, (m, n, k) in enumerate(sizes):
        for j, block in enumerate((16, 32, 64, 128)):
            for t, dtype in enumerate(("f16", "bf16", "f32")):
                density, tf32 = (0.05, 0.125, 0.3)[(i + j + t) % 3], dtype == "f32" and (i + j) % 2 == 0
                name = f"{dtype} {m}x{n}x{k} block {block} density {density}" + (", TF32" if tf32 else "")
                found.append(Problem(name, m, n, k, block, dtype=dtype, density=density, tf32=tf32))
    return found
