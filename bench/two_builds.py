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


def in_turns(arguments, times):
    """Runs old, new, old, new, ... `times` gives seconds by row. Two dicts: a row's fastest turn."""
    builds = ((arguments.old, []), (arguments.new, []))
    for _ in range(arguments.turns):
        for program, turns in builds:
            turns.append(times(program))
    return [fastest(turns) for _, turns in builds]


def fastest(turns):
    return {key: min(turn[key] for turn in turns if key in turn) for turn in turns for key in turn}


def report(arguments, command, machine, seconds):
    """Prints what bench/compare says of both builds' rows, and keeps it where a record is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "old.json", Path(folder) / "new.json"]
        for path, rows, commit in zip(paths, seconds, arguments.commits, strict=True):
            record = {
                "version": 1,
                "date": datetime.date.today().isoformat(),
                "commit": commit,
                "command": command,
                "machine": {"name": machine},
                "rows": [{"name": name, "seconds": time} for name, time in rows.items()],
            }
            path.write_text(json.dumps(record, indent=1) + "\n")
        compare = [sys.executable, COMPARE, *paths]
        subprocess.run(compare, check=True)
        if arguments.record:
            found = subprocess.run([*compare, "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
            arguments.record.write_text(found)
