"""Two builds of the library timed in turns: what bench/cpu_turns and bench/gpu_turns share."""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

COMPARE = Path(__file__).resolve().parent / "compare"


def parser(about, program, turns):
    result = argparse.ArgumentParser(description=about.split("\n")[0])
    result.add_argument("old", type=Path, help=f"{program} of the old build")
    result.add_argument("new", type=Path, help=f"{program} of the new build")
    result.add_argument("--turns", type=int, default=turns, help=f"how often each build runs ({turns})")
    result.add_argument(
        "--commits", nargs=2, default=("?", "?"), metavar=("OLD", "NEW"), help="for the record"
    )
    result.add_argument("--record", type=Path, help="where the record goes")
    return result


def in_turns(arguments, measure):
    """Runs old, new, old, new, ... and gives what `measure` made of each program: two lists, a turn each."""
    old, new = [], []
    for _ in range(arguments.turns):
        old.append(measure(arguments.old))
        new.append(measure(arguments.new))
    return old, new


def fastest(turns):
    """Of dicts of seconds by row, those of the fastest turn that has the row."""
    return {key: min(turn[key] for turn in turns if key in turn) for turn in turns for key in turn}


def report(arguments, command, machine, rows):
    """Prints what bench/compare says of both builds' rows, and keeps it where a record is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "old.json", Path(folder) / "new.json"]
        for path, mine, commit in zip(paths, rows, arguments.commits, strict=True):
            record = {
                "version": 1,
                "date": datetime.date.today().isoformat(),
                "commit": commit,
                "command": command,
                "machine": {"name": machine},
                "rows": mine,
            }
            path.write_text(json.dumps(record, indent=1) + "\n")
        compare = [sys.executable, COMPARE, *paths]
        subprocess.run(compare, check=True)
        if arguments.record:
            found = subprocess.run([*compare, "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
            arguments.record.write_text(found)
