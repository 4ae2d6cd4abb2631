"""``python -m sparse_autotune race ...``, ``report results.json -o report.html``, and of the command line's
subcommands ``tune``, ``cache``, ``info`` and ``doctor``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sparse_autotune as sa

from . import _abi, _commands, _context, _race, report
from ._matrix import check_block
from ._pattern import Pattern, Problem

_DTYPES = {short: code for code, short in _abi.DTYPE_SHORT.items()}


def _parts(kind: Callable[[str], Any], between: str, expected: str) -> Callable[[str], tuple]:
    """For argparse, which puts the option's name before the message."""

    def parse(text: str) -> tuple:
        try:
            return tuple(kind(word) for word in text.split(between))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}") from None

    return parse


def _block(text: str) -> tuple[int, int]:
    sides = [int(word) for word in text.split("x")]
    return check_block(sides[0] if len(sides) == 1 else tuple(sides))


_SIZES = "three sizes of at least 1 such as 2048x512x1024"
_BLOCKS = "sides of at least 1 such as 64, 64x32 or 16,32,64"
_SHARES = "numbers from 0 to 1 such as 0.125 or 0.1,0.5"


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sparse_autotune",
        description="Races block-sparse products, draws what came out, and looks after what is remembered.",
    )
    parser.add_argument("--version", action="version", version=sa.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    race = commands.add_parser(
        "race", help="race every variant on made-up problems; lists give every combination"
    )
    race.add_argument("--size", type=_parts(int, "x", _SIZES), default=(2048, 2048, 2048), metavar="MxNxK")
    for letter, what in (("m", "rows of the result"), ("n", "columns of the result"), ("k", "inner size")):
        race.add_argument(f"-{letter}", type=int, metavar=letter.upper(), help=f"{what}, instead of --size's")
    race.add_argument(
        "--block",
        type=_parts(_block, ",", _BLOCKS),
        default=[(64, 64)],
        metavar="B[,B...]",
        help="64 or 64x32; several are raced one after the other",
    )
    share = race.add_mutually_exclusive_group()
    share.add_argument(
        "--density",
        type=_parts(float, ",", _SHARES),
        default=[0.125],
        metavar="D[,D...]",
        help="share of the blocks that are stored (0.125)",
    )
    share.add_argument(
        "--sparsity",
        type=_parts(float, ",", _SHARES),
        metavar="S[,S...]",
        help="share of the blocks that are absent, instead",
    )
    race.add_argument("--dtype", choices=list(_DTYPES), help="by default f32 on a CPU, f16 on a GPU")
    race.add_argument("--device", default=None, help="cpu, cuda or cuda:1; by default the best that is found")
    race.add_argument("--op", choices=["matmul", "sampled"], default="matmul")
    race.add_argument("--transpose", action="store_true", help="by the transpose of A")
    race.add_argument("--seed", type=int, default=1)
    race.add_argument("--fresh", action="store_true", help="race even where the cache has the answer")
    race.add_argument("--allow-tf32", action="store_true")
    race.add_argument("--effort", choices=["quick", "full"], default="quick")
    race.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    race.add_argument("-o", "--output", type=Path, help="write the JSON object into a file, for `report`")
    page = commands.add_parser("report", help="draw results as one self-contained HTML page")
    page.add_argument(
        "results",
        type=Path,
        nargs="+",
        help="JSON of `race`, of the command line's `race --json`, or of bench/results",
    )
    page.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    page.add_argument("--title", default="Block-sparse products")
    _commands.add(commands)
    return parser.parse_args(words)


def random_pattern(
    rows: int,
    cols: int,
    block: tuple[int, int],
    density: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Row pointers and columns, every block row filled alike."""
    rng = np.random.default_rng(seed)
    gr, gc = -(-rows // block[0]), -(-cols // block[1])
    total = round(density * gr * gc)
    row_ptr = np.arange(gr + 1, dtype=np.int64) * total // max(gr, 1)
    columns = [np.sort(rng.permutation(gc)[: row_ptr[i + 1] - row_ptr[i]]) for i in range(gr)]
    return row_ptr, np.concatenate(columns).astype(np.int64) if columns else np.zeros(0, np.int64)


def _check_memory(
    sizes: tuple[int, int, int],
    shape: tuple[int, int],
    block: tuple[int, int],
    density: float,
    device: str,
    dtype: int,
) -> None:
    """Before a pattern is made, which of a size that cannot be raced takes minutes."""
    (m, n, k), have = sizes, _context.get(device).info.memory_bytes
    grid = [-(-size // side) for size, side in zip(shape, block)]
    stored = round(density * grid[0] * grid[1])
    dense = m * k + k * n if shape == (m, n) else k * n + m * n
    needed = 8 * (grid[0] + stored) + _abi.DTYPE_SIZE[dtype] * (stored * block[0] * block[1] + dense)
    if 0 < have < needed:
        raise ValueError(
            f"--size is {m}x{n}x{k}, which takes {needed / 1e9:.1f} GB at density {density:g}; {device} has "
            f"{have / 1e9:.1f} GB"
        )


def _races(a: argparse.Namespace, show: bool) -> list[dict]:
    m, n, k = (size if one is None else one for size, one in zip(a.size, (a.m, a.n, a.k)))
    device = _commands.device(a)
    dtype = _DTYPES[a.dtype or ("f16" if device != "cpu" else "f32")]
    align = 256 if device != "cpu" else 64
    same = {
        "a_dtype": dtype,
        "b_dtype": dtype,
        "c_dtype": dtype,
        "a_align": align,
        "b_align": align,
        "c_align": align,
        "flags": _abi.ALLOW_TF32 if a.allow_tf32 else 0,
    }
    found = []
    for block in a.block:
        for density in a.density if a.sparsity is None else [1 - s for s in a.sparsity]:
            rows, cols = (m, n) if a.op == "sampled" else (k, m) if a.transpose else (m, k)
            _check_memory((m, n, k), (rows, cols), block, density, device, dtype)
            pattern = Pattern(
                *random_pattern(rows, cols, block, density, a.seed), (rows, cols), block, device
            )
            problem = (
                Problem(op=_abi.SAMPLED, k=k, **same)
                if a.op == "sampled"
                else Problem(op=_abi.MATMUL, n=n, matmul=(a.transpose,), **same)
            )
            race = _race.run(pattern, device, problem, fresh=a.fresh)
            found.append(race.as_dict())
            if show:
                print(race, flush=True)
    return found


def main(words: list[str] | None = None) -> int:
    a = parse(words)
    try:
        if a.command in _commands.RUN:
            return _commands.RUN[a.command](a)
        if a.command == "report":
            races = [r for path in a.results for r in report.load(path)]
            a.output.write_text(report.page(races, a.title))
            print(f"{a.output}: {len(races)} races")
            return 0
        if len(a.size) != 3 or min(a.size) < 1:
            raise ValueError(f"--size is {'x'.join(map(str, a.size))}; expected {_SIZES}")
        for name in "mnk":
            if getattr(a, name) is not None and getattr(a, name) < 1:
                raise ValueError(f"-{name} is {getattr(a, name)}; expected 1 or more")
        for share in a.density if a.sparsity is None else a.sparsity:
            if not 0 <= share <= 1:
                raise ValueError(
                    f"--{'density' if a.sparsity is None else 'sparsity'} is {share}; expected 0 to 1"
                )
        if a.output and not a.output.parent.is_dir():  # not only when all has been raced
            raise ValueError(f"--output is {a.output}; expected a file in a folder that is there")
        with sa.set_effort(a.effort):
            races = _races(a, not a.json)
        result = races[0] if len(races) == 1 else {"version": 1, "races": races}
        if a.json:
            print(json.dumps(result))
        if a.output:
            a.output.write_text(json.dumps(result) + "\n")
        return 0 if all(r["best"] for r in races) else 1
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"sparse_autotune: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
