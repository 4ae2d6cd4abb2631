#!/usr/bin/env python3
"""The speed table: every row as a ratio to its rival, measured in one run on the machine at hand.

Runs bench_cpu, which measures the tuned plans against the dense product in turns, adds SciPy and PyTorch
where they are installed, prints target beside result, and on request writes a record (--json FILE, or
--record NAME for bench/results). Needs nothing but the standard library; docs/internals/measuring.md says
what is measured and how. `--section grid` is another program, bench/grid/runner.py, which takes its own
options: random problems through the Python package, beside their peers.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = [4, 8, 16, 32, 64, 128]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--program", default=str(ROOT / "build" / "bench" / "bench_cpu"), help="path of bench_cpu"
    )
    parser.add_argument(
        "--full", action="store_true", help="30 races of each problem, longer rounds (about 25 minutes)"
    )
    parser.add_argument(
        "--section",
        action="append",
        choices=["matmul", "skinny", "costs", "choice", "peers", "grid"],
        help="only this part; grid, which needs torch, runs alone and only when named",
    )
    parser.add_argument("--json", metavar="FILE", help="write the record there")
    parser.add_argument("--record", metavar="NAME", help="write the record to bench/results/NAME.json")
    parser.add_argument("--threads", type=int, help="instead of all cores")
    parser.add_argument("--repeats", type=int, help="races of each problem, for regret and flips")
    parser.add_argument("--seconds", type=float, help="how long a row's rounds may take")
    parser.add_argument("--effort", choices=["quick", "full"], default="quick")
    parser.add_argument("--rival", help="path of the BLAS to race against")
    arguments, rest = parser.parse_known_args()
    grid = "grid" in (arguments.section or [])
    if grid and len(arguments.section) > 1:
        parser.error("--section grid runs alone")
    if rest and not grid:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments, rest


# ---- printing ----


def scaled(value, units):
    for factor, unit in units:
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    factor, unit = units[-1]
    return f"{value / factor:.3g} {unit}"


def seconds(value):
    return scaled(value, [(1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def rate(value):
    return scaled(value, [(1e12, "TFLOPS"), (1e9, "GFLOPS"), (1e6, "MFLOPS")])


def bandwidth(value):
    return scaled(value, [(1e9, "GB/s"), (1e6, "MB/s")])


def verdict(met):
    return "met" if met else "MISSED"


class Table:
    """Prints rows as they come, counts targets, and keeps everything for the record."""

    def __init__(self):
        self.rows, self.checks, self.device = [], {}, {}
        self.machine = {}  # threads -> what the machine reached, the last and best of several looks
        self.costs, self.choices, self.met, self.missed, self.titled = [], [], 0, [], set()
        self.times = {}  # (dtype, block, threads) of the plain square rows -> seconds, flops

    def title(self, key, text, columns):
        if key not in self.titled:
            self.titled.add(key)
            print(f"\n{text}\n{columns}")

    def judge(self, name, met):
        if met:
            self.met += 1
        else:
            self.missed.append(name)
        return verdict(met)

    def add(self, row):
        handler = getattr(self, "add_" + row["section"])
        handler(row)
        sys.stdout.flush()

    def add_device(self, row):
        self.device = row
        print(f"{row['name']}, {row['threads']} threads; dense rival: {row['rival'] or 'none found'}")

    def add_machine(self, row):
        self.machine[row["threads"]] = {k: v for k, v in row.items() if k != "section"}

    def add_skipped(self, row):
        print(f"\n{row['what']}: skipped, {row['why']}")
        self.checks["skipped_" + row["what"]] = row["why"]

    def describe(self, row):
        p = row["problem"]
        shape = f" {p['pattern']}" if p["pattern"] != "random" else ""
        return (
            f"{p['dtype']} {p['m']}x{p['n']}x{p['k']} block {p['block'][0]} density {p['density']:.3g}{shape}"
        )

    def add_matmul(self, row):
        p = row["problem"]
        if p["density"] == 0.125 and p["n"] == p["m"] and p["pattern"] == "random":
            self.times[p["dtype"], p["block"][0], p["threads"], p["m"]] = (row["seconds"], p["flops"])
        self.title(
            ("matmul", p["threads"]),
            (
                f"matmul on {p['threads']} thread(s): rate on stored blocks over the dense rate of "
                f"{row['rival']}, in turns"
            )
            + self.ceiling(p["threads"]),
            f"  {'problem':50} {'variant':44} {'time':>9} {'rate':>12} {'floor':>9} {'x floor':>8} "
            f"{'ratio':>6} {'fastest':>8} {'target':>7}",
        )
        self.print_rate(row, rate(row["rate"]))

    def ceiling(self, threads):
        m = self.machine[threads]
        return (
            f"\n  (measured here: {rate(m['peak_f32'])} f32, {rate(m['peak_f64'])} f64, reading "
            f"{bandwidth(m['read_bandwidth'])})"
        )

    def add_skinny(self, row):
        self.title(
            "skinny",
            "few columns, 500 MB of values: bytes that must move over a streaming read, in turns"
            + self.ceiling(row["problem"]["threads"]),
            f"  {'problem':50} {'variant':44} {'time':>9} {'moved':>12} {'floor':>9} {'x floor':>8} "
            f"{'ratio':>6} {'fastest':>8} {'target':>7}",
        )
        self.print_rate(row, bandwidth(row["bandwidth"]))

    def print_rate(self, row, shown):
        name = self.describe(row)
        right = row["verified"] and row["checked"]
        target = f"{row['target']:.2f}" if row["target"] else "-"
        if not right:
            self.missed.append(name + ": wrong result")
            result = "WRONG"
        elif row["target"]:
            threads = row["problem"]["threads"]
            result = self.judge(
                f"{name}, {threads} thread(s): {row['ratio']:.3f} of {target}", row["ratio"] >= row["target"]
            )
        else:
            result = row["note"]
        print(
            f"  {name:50} {row['variant']:44} {seconds(row['seconds']):>9} {shown:>12} "
            f"{seconds(row['floor_seconds']):>9} {row['seconds'] / row['floor_seconds']:8.2f} "
            f"{row['ratio']:6.3f} {row['ratio_fastest']:8.3f} {target:>7} {result}"
        )
        rival = "stream_read" if row["section"] == "skinny" else "dense_" + row["rival"].split()[0].lower()
        self.rows.append(
            {
                "problem": row["problem"],
                "variant": row["variant"],
                "seconds": row["seconds"],
                "floor_seconds": row["floor_seconds"],
                "rate_ratio": row["ratio"],
                "rate_ratio_fastest": row["ratio_fastest"],
                "target": row["target"] or None,
                "ratios": {rival: row["rival_seconds"] / row["seconds"]},
            }
        )

    def add_costs(self, row):
        self.title("costs", "what the tuner costs", f"  {'cost':50} {'measured':>12} {'limit':>12}")
        limit = f"{row['limit']:.4g} {row['unit']}" if row["limit"] else "-"
        result = self.judge(row["name"], row["value"] <= row["limit"]) if row["limit"] else ""
        print(
            f"  {row['name']:50} {row['value']:9.4g} {row['unit']:2} {limit:>12} {result:7} ({row['note']})"
        )
        self.costs.append({k: row[k] for k in ("name", "value", "limit", "unit")})

    def add_choice(self, row):
        self.title(
            f"choice {row['threads']}",
            f"choice on {row['threads']} thread(s): {row['repeats']} quick races of each problem "
            "from an empty cache, judged by a long race in parts between them",
            f"  {'problem':50} {'chosen':44} {'regret':>7} {'worst':>7} "
            f"{'flips':>6} {'names':>6} {'race':>8}",
        )
        print(
            f"  {self.describe(row):50} {row['variant']:44} {row['regret']:7.1%} {row['worst_regret']:7.1%} "
            f"{row['flips']:3}/{row['repeats']:<2} {row['names']:6} {seconds(row['race_seconds']):>8}"
            + ("" if row["variant"] == row["full_variant"] else f"  long race: {row['full_variant']}")
        )
        self.choices.append(row)

    def add_choice_summary(self, row):
        count, threads = row["problems"], row["threads"]
        good = self.judge(
            f"regret on {threads} thread(s): {row['within_3_percent']} of {count}",
            row["within_3_percent"] >= count - 1,
        )
        steady = self.judge(
            f"flips on {threads} thread(s): {row['steady']} of {count} steady", row["steady"] >= count
        )
        print(
            f"  within 3 % of the best: {row['within_3_percent']} of {count} (target {count - 1}) {good}; "
            f"worst {row['worst_regret']:.1%}"
        )
        print(f"  steady, at most 2 flips in 30: {row['steady']} of {count} (target {count}) {steady}")
        near, far = row["handover_seconds"]
        if threads > 1:
            print(
                f"  a line of memory got from one core to another in {seconds(near)} to {seconds(far)}"
                + (
                    (
                        "; these cores moved apart and together meanwhile: timings of several threads moved "
                        "with them"
                    )
                    if far > 3 * near
                    else ""
                )
            )
        self.checks.setdefault("choice", []).append({k: v for k, v in row.items() if k != "section"})

    def add_peer(self, name, dtype, block, took, threads):
        ours = self.times.get((dtype, block, threads, 2048))
        self.title(
            "peers",
            "other libraries, same size and density, on their own in this run",
            f"  {'problem':50} {'library':44} {'time':>9} {'rate':>12} {'we are faster by':>18}",
        )
        flops = 2.0 * 2048**3 * 0.125
        faster = f"{took / ours[0]:.3g}x" if ours else "-"
        print(
            f"  {f'{dtype} 2048x2048x2048 block {block} density 0.125':50} {name:44} {seconds(took):>9} "
            f"{rate(flops / took):>12} {faster:>18}"
        )
        for row in self.rows:
            p = row["problem"]
            if (p["dtype"], p["block"][0], p["threads"], p["density"], p["n"], p["pattern"]) == (
                dtype,
                block,
                threads,
                0.125,
                2048,
                "random",
            ):
                row["ratios"][name.split()[0].lower() + "_bsr"] = took / row["seconds"]

    def add_dense_peer(self, name, dtype, size, took, threads, target):
        ours = self.times.get((dtype, 64, threads, size))
        if not ours:
            return
        ratio = (ours[1] / ours[0]) / (2.0 * size**3 / took)
        result = (
            self.judge(f"{dtype} {size} against {name}: {ratio:.3f} of {target}", ratio >= target)
            if target
            else "no target here"
        )
        print(
            f"  {f'{dtype} {size}x{size}x{size} block 64 over dense':50} {name:44} {seconds(took):>9} "
            f"{rate(2.0 * size**3 / took):>12} {f'rate ratio {ratio:.3f}':>18} {target or '-'} {result}"
        )
        self.checks.setdefault("dense_peers", {})[f"{dtype} {size} {name}"] = ratio


# ---- peers ----


def typical(run, budget=2.0):
    """The median, the first run not counted."""
    run()
    times, begin = [], time.perf_counter()
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        times.append(now - start)
        if now - begin > budget:
            return statistics.median(times)


def bsr_parts(numpy, block, dtype):
    """2048x2048, the same number of blocks in each row, at random: what bench_cpu measures on."""
    random, grid = numpy.random.default_rng(block), 2048 // block
    each = round(grid * 0.125)
    columns = numpy.concatenate([numpy.sort(random.permutation(grid)[:each]) for _ in range(grid)]).astype(
        numpy.int32
    )
    pointers = (numpy.arange(grid + 1) * each).astype(numpy.int32)
    return pointers, columns, random.standard_normal((grid * each, block, block)).astype(dtype), random


def add_scipy(table):
    try:
        import numpy
        import scipy
        import scipy.sparse
    except ImportError:
        print("\nSciPy: not installed, its rows are left out")
        return
    for block in BLOCKS:
        pointers, columns, values, random = bsr_parts(numpy, block, numpy.float32)
        a = scipy.sparse.bsr_matrix((values, columns, pointers), shape=(2048, 2048))
        b = random.standard_normal((2048, 2048)).astype(numpy.float32)
        table.add_peer(
            f"SciPy {scipy.__version__}", "f32", block, typical(lambda: a @ b, 0.5), table.device["threads"]
        )


def add_torch(table):
    try:
        import numpy
        import torch
    except ImportError:
        print("\nPyTorch: not installed, its rows are left out")
        return
    threads = table.device["threads"]
    torch.set_num_threads(threads)
    name = f"PyTorch {torch.__version__}"
    b = torch.randn(2048, 2048)
    for block in BLOCKS:
        pointers, columns, values, _ = bsr_parts(numpy, block, numpy.float32)
        try:
            a = torch.sparse_bsr_tensor(
                torch.from_numpy(pointers), torch.from_numpy(columns), torch.from_numpy(values), (2048, 2048)
            )
            table.add_peer(name, "f32", block, typical(lambda: a @ b), threads)
        except (RuntimeError, NotImplementedError) as error:
            print(f"  PyTorch's BSR at block {block}: {str(error).splitlines()[0][:90]}")
    # Targets were set for a machine with AMX, at the size that keeps many cores busy.
    has_amx = "amx" in table.device["identity"].lower()
    for dtype, kind, target in (("f32", torch.float32, 0.8), ("bf16", torch.bfloat16, 0.5)):
        for size in (2048, 4096):
            x, y = torch.randn(size, size).to(kind), torch.randn(size, size).to(kind)
            table.add_dense_peer(
                name + " dense",
                dtype,
                size,
                typical(lambda: x @ y),
                threads,
                target if has_amx and size == 4096 else 0,
            )


# ---- the record ----


def git(*words):
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_record(path, table):
    # A copy of the tree without its history is given its commit.
    commit = os.environ.get("COMMIT") or git("rev-parse", "HEAD") + (
        "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
    )
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = {
        "version": 1,
        "date": now,
        "commit": commit,
        "command": "make bench ARGS=" + json.dumps(" ".join(sys.argv[1:])),
        "machine": {
            "name": table.device.get("name"),
            "identity": table.device.get("identity"),
            "threads": table.device.get("threads"),
            "rival": table.device.get("rival"),
            "system": platform.system() + " " + platform.machine(),
            "ceilings": list(table.machine.values()),
        },
        "rows": table.rows,
        "checks": dict(
            table.checks,
            costs=table.costs,
            missed=table.missed,
            targets_met=table.met,
            choices=[{k: v for k, v in c.items() if k != "section"} for c in table.choices],
        ),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {path}")


def run_grid(arguments, rest):
    sys.path.append(str(ROOT / "bench" / "grid"))
    import runner

    build = Path(arguments.program).resolve().parent.parent
    words = ["--library", build / "libsparse_autotune.so", "--folder", build / "grid"]
    path = ROOT / "bench" / "results" / f"{arguments.record}.json" if arguments.record else arguments.json
    for name, value in (("record", path), ("seconds", arguments.seconds), ("threads", arguments.threads)):
        words += [f"--{name}", value] if value else []
    return runner.main([*words, *rest], "bench/bench.py --section grid")


def main():
    arguments, rest = parse_arguments()
    if "grid" in (arguments.section or []):
        sys.exit(run_grid(arguments, rest))
    table = Table()
    command = [arguments.program, "--effort", arguments.effort]
    command += ["--repeats", str(arguments.repeats or (30 if arguments.full else 3))]
    command += ["--seconds", str(arguments.seconds or (5 if arguments.full else 2))]
    command += ["--exhaustive", "10" if arguments.full else "4"]
    command += ["--threads", str(arguments.threads)] if arguments.threads else []
    command += ["--rival", arguments.rival] if arguments.rival else []
    for section in arguments.section or []:
        command += ["--section", section] if section != "peers" else []
    # Nothing of the user's settings may change what is measured.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARSE_AUTOTUNE")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        for line in program.stdout:
            table.add(json.loads(line))
    if program.returncode != 0:
        sys.exit(f"bench_cpu failed with {program.returncode}")
    if not arguments.section or "peers" in arguments.section:
        add_scipy(table)
        add_torch(table)
    print(f"\n{table.met} targets met, {len(table.missed)} missed")
    for name in table.missed:
        print(f"  missed: {name}")
    if arguments.json:
        write_record(Path(arguments.json), table)
    if arguments.record:
        write_record(ROOT / "bench" / "results" / (arguments.record + ".json"), table)


if __name__ == "__main__":
    main()
