#!/usr/bin/env python3
"""Random problems through the tuned call of the Python package, each verified, each beside its peers.

usage: bench/grid/runner.py [--grid NAME ...] [--seconds S] [--onto RECORD] [options]

Grids are gpu_products, gpu_attention, cpu_products and cpu_attention. Problem i is a function of the seed,
the commit's hash, and of i. What a record given by --onto has of the same seed is not measured again, so a
grid can be measured in parts. The package is built as a wheel into a fresh environment on top of torch,
unless --installed names a Python that has both. bench/gpu_check --section grid and
make bench ARGS="--section grid" come here. The exit status is 1 if a result of ours was wrong or failed;
timings never change it.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path += [str(HERE), str(HERE.parent / "gpu")]

import draw
import report
import summary

PROBLEMS = 200
PATIENCE = 90.0  # seconds without a word, after which a problem is given up
SAVED_EVERY = 15.0
STARTING = 150.0  # the same for the first word, which waits for torch and the GPU


def add_arguments(parser):
    """What gpu_check and bench.py pass on."""
    group = parser.add_argument_group("the grid")
    group.add_argument(
        "--grid", action="append", choices=draw.GRIDS, help="only this one; may be given again"
    )
    group.add_argument("--seed", help="instead of the commit's hash")
    group.add_argument("--problems", type=int, default=PROBLEMS, help=f"of each grid ({PROBLEMS})")
    group.add_argument(
        "--threads",
        type=int,
        help="of the CPU grids; a number other than this machine's is named in the record",
    )
    group.add_argument("--installed", help="a Python that has torch and the package, instead of building it")
    group.add_argument("--python", default=sys.executable, help="a Python that has torch, to build it beside")
    group.add_argument("--library", type=Path, help="a built libsparse_autotune.so, instead of compiling one")
    group.add_argument("--wheel", type=Path, help="a built wheel")
    group.add_argument("--keep", type=Path, help="copies the cache there, with all results of all races")


def cores():
    return len(os.sched_getaffinity(0))


class Failure(Exception):
    pass


# ---- the environment ----


def python_check():
    """bench/python_check as a module: it builds wheels and environments."""
    loader = importlib.machinery.SourceFileLoader("python_check", str(ROOT / "bench" / "python_check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("python_check", loader))
    loader.exec_module(module)
    return module


def prepare(arguments, folder):
    """A Python with the package and torch."""
    if arguments.installed:
        return arguments.installed
    if subprocess.run([arguments.python, "-c", "import torch"], capture_output=True).returncode != 0:
        raise Failure(f"{arguments.python} has no torch: name one that has by --python, or by --installed")
    folder.mkdir(parents=True, exist_ok=True)
    words = argparse.Namespace(
        python=arguments.python, wheel=arguments.wheel, library=arguments.library, folder=folder
    )
    tools = python_check()
    try:
        return str(tools.install(words, tools.build_wheel(words)))
    except (SystemExit, subprocess.CalledProcessError, OSError) as error:
        raise Failure(f"the package could not be built: {error}") from None


# ---- one process that measures ----


class Child:
    """measure.py, and what it says. Its error output goes to a file, whose end explains a death."""

    def __init__(self, python, environment, words, log):
        self.lines, self.log = queue.Queue(), log
        self.process = subprocess.Popen(
            [python, str(HERE / "measure.py"), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=open(log, "w"),
            text=True,
            env=environment,
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("{"):  # else a library's chatter
                try:
                    self.lines.put(json.loads(line))
                except json.JSONDecodeError:
                    pass
        self.lines.put(None)

    def next(self, seconds):
        """What it says next; None: it has ended, or was ended for its silence."""
        try:
            return self.lines.get(timeout=max(0.1, seconds))
        except queue.Empty:
            self.process.kill()
            return None

    def end(self):
        self.process.kill()
        code = self.process.wait()
        said = Path(self.log).read_text(errors="replace").strip().splitlines()
        hung = next((i for i, line in enumerate(said) if line.startswith("Timeout (")), None)
        if hung is None:
            return code, said[-1][:160] if said else ""
        # the innermost lines of the thread that calls, which faulthandler prints last
        main = max(i for i, line in enumerate(said) if line.startswith(("Thread ", "Current thread ")))
        frames = [Path(line.split('"')[1]).name + line.split('"')[2] for line in said[main:] if '"' in line]
        return code, "silent in " + " < ".join(frames[:4])


class Run:
    """One grid: problems that are not in the record yet, until the time is spent."""

    def __init__(self, grid, seed, threads, python, folder, scratch, done, count):
        self.grid, self.seed, self.threads, self.python = grid, seed, threads, python
        self.folder, self.scratch = folder, scratch
        self.todo = [i for i in range(count) if i not in done]
        self.rows, self.machine, self.left_out, self.failures, self.warnings = [], {}, {}, [], []

    def environment(self):
        # Nothing of the user's settings may change what is measured.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SPARSE_AUTOTUNE")}
        clean.pop("PYTHONPATH", None)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            clean[name] = str(self.threads)
        clean["SPARSE_AUTOTUNE_CACHE"] = str(self.scratch / "cache")  # all is tuned from nothing
        for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            clean[name] = str(self.folder / "compiled" / name.split("_")[0].lower())
        clean["PYTHONDONTWRITEBYTECODE"] = "1"
        return clean

    def run(self, seconds, progress):
        end, idle = time.monotonic() + seconds, 0
        while self.todo and time.monotonic() < end and idle < 3:
            before = len(self.todo)
            self.run_some(end, progress)
            idle = idle + 1 if len(self.todo) == before else 0
        if idle == 3:
            self.failures.append(f"{self.grid}: the measuring process ends before it begins")
        return self.rows

    def run_some(self, end, progress):
        excluded = [f"{i}:{name}" for i, names in self.left_out.items() for name in names]
        indices = ",".join(map(str, self.todo))
        words = [self.grid, self.seed, f"{end - time.monotonic():.1f}", self.threads, indices, *excluded]
        child = Child(self.python, self.environment(), words, self.scratch / "log")
        stage, index, patience = "start", None, STARTING
        while True:
            # what was begun in time may be finished
            said = child.next(min(patience, end + PATIENCE - time.monotonic()))
            if said is None:
                break
            patience = PATIENCE
            self.machine = said.get("machine", self.machine)
            stage, index = said.get("stage", stage), said.get("begin", index)
            if "row" in said:
                self.take(said["row"], progress)
                index = None
        code, why = child.end()
        if index is not None and time.monotonic() < end + PATIENCE - 1:
            self.blame(index, stage, f"the process ended with {code}, or hung: {why}", progress)
        elif code not in (0, -9):
            self.failures.append(f"{self.grid}: {why}")

    def blame(self, index, stage, why, progress):
        """A peer is left out of the next attempt, what ended in turns has another one; ours has lost."""
        if stage not in ("start", "ours") and stage not in self.left_out.get(index, ()):
            self.warnings.append(f"{self.grid} {index}, {stage}: {why}")
            self.left_out.setdefault(index, []).append(stage)
            return
        p = draw.problem(self.grid, self.seed, index)
        row = {"index": index, "problem": p.words(), "facts": draw.describe(p), "strata": p.strata()}
        row.update(error=why, peers={}, peer=None, peer_seconds=None, seconds=None, ratio=None)
        self.take(row, progress)

    def take(self, row, progress):
        self.todo.remove(row["index"])
        self.rows.append(row)
        if row.get("error"):
            self.failures.append(f"{self.grid} {row['index']}: {row['problem']}: {row['error']}")
        progress(self, row)


# ---- all of them ----


def show_progress(run, row):
    """One line that is written over, on a terminal alone."""
    if not sys.stderr.isatty():
        return
    found = summary.figures(map(summary.triple, run.rows), summary.BEHIND[summary.kind_of(run.grid)])
    sys.stderr.write(
        f"\r\033[K{run.grid}: {len(run.rows)} done, {len(run.todo)} to do, {found['behind_3_percent']} "
        f"behind, mean {summary.number(found['geometric_mean'])}; {row['problem'][:60]}"
    )
    sys.stderr.flush()


def end_progress():
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def name_of(grid, threads):
    return grid if grid.startswith("gpu") or threads == cores() else f"{grid}_{threads}_threads"


def with_rows(grids, name, run):
    if not run.rows:
        return grids
    return summary.merged(grids, {name: summary.summarise(name, run.seed, run.rows, run.machine)})


def measure(arguments, grids, seconds, folder, onto, save):
    """The grids of a record, with what there was. `save` takes them after each."""
    end = time.monotonic() + seconds
    seed = arguments.seed or report.commit(ROOT).removesuffix("-dirty")
    if not seed:
        raise Failure("the commit is not known: set COMMIT, or give --seed")
    threads = arguments.threads or cores()
    old = dict(onto or {})
    failures = []
    python = prepare(arguments, folder)
    for number, grid in enumerate(grids):
        name = name_of(grid, threads)
        before = old.get(name)
        done = {r["index"] for r in before["rows"]} if before and before["seed"] == seed else set()
        with tempfile.TemporaryDirectory(prefix="grid_") as scratch:
            run = Run(grid, seed, threads, python, folder, Path(scratch), done, arguments.problems)
            share = (end - time.monotonic()) / (len(grids) - number)
            saved = time.monotonic()

            def progress(run, row):
                nonlocal saved
                show_progress(run, row)
                if time.monotonic() > saved + SAVED_EVERY:
                    save(with_rows(old, name, run))
                    saved = time.monotonic()

            run.run(share, progress)
            if arguments.keep:
                shutil.copytree(run.scratch / "cache", arguments.keep, dirs_exist_ok=True)
        end_progress()
        failures += run.failures
        for what in run.warnings:
            print(f"  {what}", flush=True)
        old = with_rows(old, name, run)
        save(old)
        if name in old:
            print(summary.text(name, old[name]), flush=True)
        if run.todo:
            print(f"  {len(run.todo)} problems of {arguments.problems} are still to be measured", flush=True)
    return old, failures


def main(words=None, called="bench/grid/runner.py"):
    words = sys.argv[1:] if words is None else [str(word) for word in words]
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=480, help="for all of it (480)")
    parser.add_argument("--onto", type=Path, help="a record to add to")
    parser.add_argument(
        "--record", type=Path, help="where the record goes (--onto's, or build/grid/record.json)"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "grid", help="wheel and environment")
    a = parser.parse_args(words)
    path = a.record or a.onto or a.folder / "record.json"
    old = json.loads(a.onto.read_text()) if a.onto and a.onto.exists() else None
    command = shlex.join([*called.split(), *(os.path.basename(word) for word in words)])

    def save(grids):
        if old is None:
            report.write(path, ROOT, command, {}, [], {}, grids=grids)
        else:
            report.save(path, dict(old, grids=grids))

    try:
        grids = a.grid or [g for g in draw.GRIDS if g.startswith("cpu")]
        _, failures = measure(a, grids, a.seconds, a.folder, (old or {}).get("grids"), save)
    except Failure as failure:
        print(f"grid: {failure}", file=sys.stderr)
        return 2
    print(f"record: {path}")
    for what in failures:
        print(f"FAILED: {what}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
