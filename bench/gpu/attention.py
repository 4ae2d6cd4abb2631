"""Attention in bench/gpu_check: its problems, what each should reach, and how its rows are judged.

A mask is written as a pattern is: one entry for each block that is kept, the same for ours and for PyTorch's
FlexAttention. Without a mask one block holds everything. Rates count the pairs of query and key that are
kept, after causal and window.
"""

import dataclasses
import random
import zlib

import floor
import report


@dataclasses.dataclass
class Attention:
    name: str
    batch: int
    heads: int
    m: int  # queries
    n: int  # keys
    dim: int
    kv_heads: int = 0  # 0: as many as heads
    block: int = 0  # 0: no mask
    density: float = 1.0
    causal: bool = False
    window: int = 0
    op: str = "attention"
    dtype: str = "f16"
    rivals: tuple = ()  # sdpa, flex
    must: dict = dataclasses.field(default_factory=dict)  # ratio -> least value
    aim: dict = dataclasses.field(default_factory=dict)
    like: str = ""  # the row that `own_dense` and `dense_rate` compare with
    measure: str = "warm"
    libraries: bool = True
    tf32: bool = False

    def shrunk(self, factor):
        """The same problem, smaller: to try the script out."""

        def smaller(size):
            return (
                size
                if size == 1
                else max(self.block * 4, 16, size // factor // max(1, self.block) * max(1, self.block))
            )

        return dataclasses.replace(
            self,
            m=smaller(self.m),
            n=smaller(self.n),
            heads=self.shares() * 2,
            kv_heads=2,
            dim=min(self.dim, 64),
            batch=min(self.batch, 2),
            window=self.window and max(1, self.window // factor),
        )

    def shares(self):
        """Query heads that read one head of keys."""
        return self.heads // (self.kv_heads or self.heads)

    # ---- the mask ----

    def sides(self):
        return (self.block, self.block) if self.block else (self.m, self.n)

    def blocks(self):
        """The block columns of each block row."""
        if not self.block:
            return [[0]]
        rows, cols = self.m // self.block, self.n // self.block
        pick = random.Random(zlib.crc32(f"attention {self.m} {self.n} {self.block} {self.density}".encode()))
        total = round(self.density * rows * cols)
        counts = [total * (i + 1) // rows - total * i // rows for i in range(rows)]
        pick.shuffle(counts)
        return [sorted(pick.sample(range(cols), count)) for count in counts]

    def write(self, path):
        lists, (rows, cols) = self.blocks(), self.sides()
        with open(path, "w") as f:
            f.write(
                f"%%MatrixMarket matrix coordinate pattern general\n{self.m} {self.n} "
                f"{sum(map(len, lists))}\n"
            )
            for i, columns in enumerate(lists):
                f.writelines(f"{i * rows + 1} {j * cols + 1}\n" for j in columns)

    def key(self):
        """Problems with the same pattern have the same."""
        return "attention", self.m, self.n, self.block, self.density

    # ---- the command line ----

    def race_words(self, matrix):
        words = [
            "--matrix",
            str(matrix),
            "--block",
            "{}x{}".format(*self.sides()),
            "--dtype",
            self.dtype,
            "--op",
            self.op,
            "--batch",
            str(self.batch),
            "--heads",
            str(self.heads),
            "--kv-heads",
            str(self.kv_heads or self.heads),
            "--dim",
            str(self.dim),
            "--measure",
            self.measure,
        ]
        words += ["--causal"] if self.causal else []
        words += ["--window", str(self.window)] if self.window else []
        return words

    def job_line(self, number, matrix, variants, more=""):
        """For bench_gpu."""
        rows, cols = self.sides()
        return (
            f"id={number} op={self.op} m={self.m} n={self.n} dim={self.dim} batch={self.batch} "
            f"heads={self.heads} "
            f"kv_heads={self.kv_heads or self.heads} causal={int(self.causal)} window={self.window} "
            f"dtype={self.dtype} "
            f"block_rows={rows} block_cols={cols} matrix={matrix} variants={','.join(variants)}{more}\n"
        )

    def rival_job(self, number):
        """For attention_rivals.py."""
        names = ("op", "batch", "heads", "m", "n", "dim", "block", "causal", "window", "dtype")
        return {
            "id": number,
            **{name: getattr(self, name) for name in names},
            "kv_heads": self.kv_heads or self.heads,
            "blocks": self.blocks() if self.block else [],
            "rivals": list(self.rivals),
        }


def all_problems():
    return dense() + short() + masked() + windowed() + decode() + backward() + head_sizes()


LONG = "attention 2, 16, 8192, 128"


def dense():
    rows = []
    for batch, length, musts, aims in (
        (1, 4096, (0.85, 0.8), (1.0, 1.05)),
        (2, 8192, (0.85, 0.85), (1.0, 1.0)),
    ):
        for causal in (False, True):
            must, aim = {"cudnn": musts[causal]}, {"cudnn": aims[causal]}
            if length == 4096:
                must["sdpa_flash"] = 1.4
            rows.append(
                Attention(
                    f"attention {batch}, 16, {length}, 128" + (", causal" if causal else ""),
                    batch,
                    16,
                    length,
                    length,
                    128,
                    causal=causal,
                    rivals=("sdpa",),
                    must=must,
                    aim=aim,
                )
            )
    return rows


def short():
    return [
        Attention(
            f"attention 1, 8, {length}, 64",
            1,
            8,
            length,
            length,
            64,
            rivals=("sdpa",),
            must={"best_sdpa": 0.9},
            aim={"best_sdpa": 1.1},
        )
        for length in (512, 1024)
    ]


def masked():
    rows = [
        Attention(
            f"attention 1, 16, 8192, 128, 128-blocks, density {density}",
            1,
            16,
            8192,
            8192,
            128,
            block=128,
            density=density,
            rivals=("flex",),
            must={"flex_attention": 1.25},
            aim={"tflops": 500},
        )
        for density in (1.0, 0.51, 0.26, 0.14)
    ]
    rows.append(
        Attention(
            "attention 1, 16, 8192, 128, 64-blocks, density 0.14",
            1,
            16,
            8192,
            8192,
            128,
            block=64,
            density=0.14,
            rivals=("flex",),
            must={"flex_attention": 1.15},
            aim={"flex_attention": 1.4},
        )
    )
    return rows


def windowed():
    asked = {"must": {"tflops": 450}, "aim": {"dense_rate": 0.85}, "like": LONG, "rivals": ("flex",)}
    return [
        Attention("attention 1, 16, 16384, 128, window 1024", 1, 16, 16384, 16384, 128, window=1024, **asked),
        Attention(
            "attention 1, 16, 16384, 128, causal window 1024",
            1,
            16,
            16384,
            16384,
            128,
            window=1024,
            causal=True,
            like=LONG,
        ),
    ]


def decode():
    return [
        Attention(
            "attention 32, 32 over 8, 1 query, 8192 keys, 128",
            32,
            32,
            1,
            8192,
            128,
            kv_heads=8,
            rivals=("sdpa",),
            must={"hbm": 0.8},
            aim={"hbm": 0.9},
        )
    ]


def backward():
    name = "attention backward 1, 16, 4096, 128"
    return [
        Attention(
            name,
            1,
            16,
            4096,
            4096,
            128,
            op="attention-backward",
            rivals=("sdpa",),
            must={"best_sdpa": 0.75},
            aim={"best_sdpa": 1.0},
        ),
        Attention(
            name + ", 128-blocks, density 0.26",
            1,
            16,
            4096,
            4096,
            128,
            block=128,
            density=0.26,
            op="attention-backward",
            rivals=("flex",),
            must={"own_dense": 2.5},
            aim={"own_dense": 3.2},
            like=name,
        ),
    ]


def head_sizes():
    """Nothing is asked of these, so they come last: where time runs out, they are what is left out."""
    return [
        Attention(
            f"attention 1, 16, 4096, {dim}" + (", causal" if causal else ""),
            1,
            16,
            4096,
            4096,
            dim,
            causal=causal,
            rivals=("sdpa",),
        )
        for dim in (96, 256)
        for causal in (False, True)
    ]


# ---- rows ----


class Row(report.Row):
    columns = (
        ("cudnn", "cuDNN"),
        ("sdpa_flash", "flash 2"),
        ("sdpa_efficient", "efficient"),
        ("flex_attention", "flex"),
    )

    def set_floor(self, ceilings):
        """Operations at the rate that dense products reach, or the operands through memory: back to back what
        L2 does not hold."""

        def floors(cold):
            beyond = self.bytes if cold else max(0, self.bytes - ceilings["l2_bytes"])
            return {
                "operations": self.flops / ceilings[floor.ceiling_of(self.problem)],
                "hbm": beyond / ceilings["memory"],
            }

        self.floors, self.cold_floor = floors(False), max(floors(True).values())

    def ratios(self, rows, ceilings):
        """Above 1 we are faster. `cudnn`: the faster of our own call of it and PyTorch's. `tflops` is a rate,
        `hbm` and `dense_rate` are shares of the memory's rate and of cuDNN's rate without a mask, `own_dense`
        is how many times faster than without the mask."""
        if not self.seconds:
            return {}
        best = dict(self.rivals)
        sdpa = [s for name, s in best.items() if name == "cudnn" or name.startswith("sdpa_")]
        if "sdpa_cudnn" in best:
            best["cudnn"] = min(best["sdpa_cudnn"], best.get("cudnn", 1e9))
        if sdpa:
            best["best_sdpa"] = min(sdpa)
        found = {name: s / self.seconds for name, s in best.items() if s}
        found["tflops"] = self.flops / self.seconds * 1e-12
        if ceilings and self.problem.m == 1:
            found["hbm"] = self.bytes / self.seconds / ceilings["memory"]
        like = rows.get(self.problem.like)
        if like and self.problem.window:
            times = [s for s in (like.rivals.get("cudnn"), like.rivals.get("sdpa_cudnn")) if s]
            if times:
                found["dense_rate"] = (self.flops / self.seconds) / (like.flops / min(times))
        elif like and like.seconds:
            found["own_dense"] = like.seconds / self.seconds
        return found

    def problem_record(self):
        p = self.problem
        given = {
            name: getattr(p, name)
            for name in (
                "name",
                "op",
                "batch",
                "heads",
                "m",
                "n",
                "dim",
                "density",
                "causal",
                "window",
                "dtype",
                "measure",
            )
        }
        return dict(
            self.race["problem"] if self.race else {},
            **given,
            kv_heads=p.kv_heads or p.heads,
            block=list(p.sides()),
        )

    def floor_record(self):
        return {"limit": self.limit, "seconds": self.floors}
