"""What ncu counts while a kernel runs: why a row of bench/gpu_check takes as long as it does."""

import csv
import glob
import os
import shutil
import statistics

SHARE = "avg.pct_of_peak_sustained_elapsed"
COUNTERS = {  # name -> what ncu calls it, and what one of its units is
    "seconds": ("gpu__time_duration.sum", 1e-9),
    "clock_hertz": ("sm__cycles_elapsed.avg.per_second", 1),
    "tensor_share": (f"sm__pipe_tensor_cycles_active.{SHARE}", 0.01),
    "l2_share": (f"lts__throughput.{SHARE}", 0.01),
    "l2_hits": ("lts__t_sector_hit_rate.pct", 0.01),
    "l2_read_bytes": ("lts__t_sectors_op_read.sum", 32),
    "memory_share": (f"dram__throughput.{SHARE}", 0.01),
}
# our products and cuBLAS's, not what fills operands and verifies
KERNELS = "multiply|matmul|gathered|nvjet|gemm|cutlass"
DENSE = "cuda_matmul_any_any_cublaslt_dense"
SKIPPED, LAUNCHES = 25, 3  # so many come first: verification, then a warm cache


def find():
    places = [shutil.which("ncu"), *sorted(glob.glob("/usr/local/cuda*/bin/ncu"))]
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def jobs(rows):
    """(name, variant) of the products that miss a target, and (m, n, k, dtype, whether by TF32) of the dense
    ones to set beside them."""
    missed, sizes = {}, {}
    for row in rows:
        p = row["problem"]
        for target in row["targets"] if p["op"] == "matmul" else ():
            variant = row["portable" if target["ratio"].endswith("_portable") else "variant"]
            if target["met"] is False and variant:
                missed[p["name"], variant] = sizes[p["m"], p["n"], p["k"], p["dtype"], p["tf32"]] = True
    return list(missed), list(sizes)


def dense_words(m, n, k, dtype, tf32):
    """All blocks stored, by a library: what the chip does with a dense product."""
    return [
        "--size",
        f"{m}x{n}x{k}",
        "--block",
        "128",
        "--sparsity",
        "0",
        "--dtype",
        dtype,
        "--measure",
        "warm",
        "--allow-dense",
        "--only",
        DENSE,
        *(["--allow-tf32"] if tf32 else []),
    ]


def words(tool, log):
    """ncu's part of a command line. Clocks and caches stay as they are: that is what rows are timed with."""
    metrics = ",".join(name for name, _ in COUNTERS.values())
    return [
        tool,
        "--clock-control",
        "none",
        "--cache-control",
        "none",
        "--kernel-name",
        f"regex:{KERNELS}",
        "--launch-skip",
        SKIPPED,
        "--launch-count",
        LAUNCHES,
        "--metrics",
        metrics,
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--log-file",
        log,
    ]


def read(log):
    """The median of each counter over the launches, and the kernel's name; None where ncu saw none."""
    lines = [line for line in log.read_text().splitlines() if line.startswith('"')] if log.exists() else []
    launches = []
    for row in csv.DictReader(lines):
        try:
            launches.append(
                {
                    "kernel": row["Kernel Name"],
                    **{name: float(row[of].replace(",", "")) * unit for name, (of, unit) in COUNTERS.items()},
                }
            )
        except (KeyError, ValueError, TypeError):
            continue  # the line of units
    if not launches or len({launch["kernel"] for launch in launches}) > 1:
        return None
    return {
        "kernel": launches[0]["kernel"],
        "launches": len(launches),
        **{name: statistics.median(launch[name] for launch in launches) for name in COUNTERS},
    }


def table(found):
    """For a page, of what a record has."""
    lines = [
        (
            "| problem | variant | us under ncu | clock, GHz | tensor cores busy | L2 | L2 hits | read from "
            "L2, MB | memory |"
        ),
        "|---" * 9 + "|",
    ]
    for c in found:
        shares = [
            f"{c[name] * 100:.0f} %" for name in ("tensor_share", "l2_share", "l2_hits", "memory_share")
        ]
        lines.append(
            f"| {c['problem']} | `{c['variant']}` | {c['seconds'] * 1e6:.1f} | {c['clock_hertz'] / 1e9:.2f} "
            f"| {shares[0]} | {shares[1]} | {shares[2]} | {c['l2_read_bytes'] / 1e6:.0f} | {shares[3]} |"
        )
    return lines
