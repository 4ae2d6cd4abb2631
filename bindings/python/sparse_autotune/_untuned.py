"""Races the problems that effort "cached" had to answer by estimate.

The cache noted each as words. A pattern with the same sizes, number of blocks, skew and overlap is made up
from them, as the command line's `tune` does it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _abi, _context, _race
from ._dynamic import Kind
from ._pattern import Pattern, Plan, Plans, Problem

_DTYPES = {short: code for code, short in _abi.DTYPE_SHORT.items()}
_OPS = {name: code for code, name in _abi.OP_NAMES.items()}
_FLAGS = {
    "tf32": _abi.ALLOW_TF32,
    "dense": _abi.ALLOW_DENSE,
    "nondeterministic": _abi.ALLOW_NONDETERMINISTIC,
    "fixed": _abi.FIXED_VALUES,
}
_OFFSETS = {"i32": _abi.I32, "i64": _abi.I64}
_HEADS = ("q_at", "k_at", "v_at", "o_at", "dq_at", "dk_at", "dv_at", "do_at")  # as sat_attention has them
_SEEDS = 24  # a pattern of few blocks may miss the key by chance


# ---- from words to a problem ----


def read_words(text: str) -> dict[str, str]:
    """ "m=64 causal" as {"m": "64", "causal": ""}."""
    return dict(word.partition("=")[::2] for word in text.split())


def _numbers(text: str, between: str = ",") -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(between))


def read_problem(words: dict[str, str]) -> Problem:
    op, (a, b, c) = _OPS[words["op"]], (_DTYPES[words[name]] for name in "abc")
    align = _numbers(words["align"])
    fields: dict[str, Any] = {
        "op": op,
        "batch": int(words["batch"]),
        "a_dtype": a,
        "b_dtype": b,
        "c_dtype": c,
        "a_align": align[0],
        "b_align": align[1],
        "c_align": align[2],
        "beta": float(words["beta"]),
        "flags": sum(flag for word, flag in _FLAGS.items() if word in words),
    }
    if op in (_abi.MATMUL, _abi.SAMPLED):
        fields |= {name: int(words[name]) for name in "mnk"}
        fields |= {name: _numbers(words[f"{name}_strides"]) for name in "abc"}
        if op == _abi.MATMUL:
            fields["matmul"] = (int(words["t"]), int(words["bias"]), _abi.ACTIVATIONS[words["act"]])
        return Problem(**fields)
    if op in (_abi.GROUPED, _abi.GROUPED_WEIGHTS):
        fields |= {name: int(words[name]) for name in "mnk"}
        fields |= {name: _numbers(words[f"{name}_strides"]) for name in "abc"}
        facts = words["bias"] == "1", _abi.ACTIVATIONS[words["act"]], float(words["skew"])
        return Problem(**fields, grouped=(int(words["groups"]), _OFFSETS[words["offsets"]], *facts))
    if "strides" in words:
        raise ValueError("it has a number in place of its strides")
    plain = tuple(int(words[name]) for name in ("heads", "kv_heads", "dim"))
    mask = ("causal" in words, int(words["window"]), "lse" in words)
    heads = tuple(_numbers(words.get(name, "0,0,0")) for name in _HEADS)
    fields |= {"m": int(words["m"]), "n": int(words["n"]), "alpha": -1.0 if "negative" in words else 0.0}
    softcap = float(words.get("softcap") or 30) if "softcap" in words else 0.0
    options = int(words.get("value_dim", plain[2])), softcap, "sinks" in words
    return Problem(**fields, attention=(*plain, *mask, *heads, *options))


# ---- a pattern like the one that was noted ----


def _shares(rows: int, cols: int, stored: int, exponent: float) -> np.ndarray:
    """Blocks a row by rank: scale * rank^-exponent, at most a whole row, `stored` in all."""
    weight = np.arange(1, rows + 1, dtype=float) ** -exponent
    low, high = 0.0, stored * float(rows) ** exponent + 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * weight, cols).sum() < stored else (low, middle)
    return np.minimum(high * weight, cols)


def _counts(rows: int, cols: int, stored: int, skew: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of each row, `stored` in all; the heaviest row has `skew` times the mean."""
    if rows == 0 or skew <= 1:
        return np.diff(np.arange(rows + 1) * stored // max(rows, 1))
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        top = _shares(rows, cols, stored, middle)[0]
        low, high = (middle, high) if top < skew * stored / rows else (low, middle)
    ends = np.floor(np.cumsum(_shares(rows, cols, stored, high)) + 0.5).astype(np.int64)
    count = np.clip(np.diff(ends, prepend=0), 0, cols)
    step = 1 if count.sum() < stored else -1
    while (left := abs(stored - int(count.sum()))) > 0:  # what rounding left over
        may = np.flatnonzero(count < cols if step > 0 else count > 0)[:left]
        count[may] += step
    return rng.permutation(count)


def _others(cols: int, before: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many columns, none of which is in `before`."""
    if 4 * (count + len(before)) >= cols:
        return rng.permutation(np.setdiff1d(np.arange(cols), before))[:count]
    found = np.zeros(0, np.int64)
    while len(found) < count:
        drawn = np.setdiff1d(rng.integers(cols, size=2 * count), before)
        found = np.union1d(found, drawn)
    return rng.permutation(found)[:count]


def _indices(
    rows: int,
    cols: int,
    stored: int,
    skew: float,
    overlap: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each block. A row has a share of the columns of the row before."""
    counts = _counts(rows, cols, stored, skew, rng)
    before, columns = np.zeros(0, np.int64), [np.zeros(0, np.int64)]
    for count in counts:
        had = len(before)
        keep = min(int(count), max(int(overlap * had + rng.random()), int(count) - (cols - had)))
        kept = rng.permutation(before)[:keep]
        before = np.sort(np.concatenate((kept, _others(cols, before, int(count) - len(kept), rng))))
        columns.append(before)
    return np.repeat(np.arange(rows), counts), np.concatenate(columns)


def make_pattern(words: dict[str, str], device: str, seed: int) -> Plans:
    if "groups" in words:
        return Plans()
    m, n, k, stored = (int(words[name]) for name in ("m", "n", "k", "blocks"))
    op, transposed = _OPS[words["op"]], words.get("t") == "1"
    br, bc = block = _numbers(words["block"], "x")
    rows, cols = (m, n) if op != _abi.MATMUL else (k, m) if transposed else (m, k)
    if int(words.get("masks", 1)) > 1:  # one for each head, below each other
        rows = int(words["heads"]) * -(-m // br) * br
    if "dynamic" in words:
        return Kind((rows, cols), block, stored, _abi.I64, (float(words["density"]), float(words["skew"])))
    skew, overlap, grid = float(words["skew"]), float(words["overlap"]), (-(-rows // br), -(-cols // bc))
    if not 0 <= stored <= grid[0] * grid[1]:
        raise ValueError(f"{stored} blocks of {grid[0] * grid[1]}")
    rng = np.random.default_rng(seed)
    if transposed and skew > 1.25:  # the skew is that of op(A)'s rows
        j, i = _indices(*grid[::-1], stored, skew, overlap, rng)
    else:
        i, j = _indices(*grid, stored, skew, overlap, rng)
    row_ptr = np.concatenate(([0], np.cumsum(np.bincount(i, minlength=grid[0])))).astype(np.int64)
    col_idx = j[np.lexsort((j, i))].astype(np.int64)
    sequences = int(words.get("sequences", 0))
    offsets = tuple(np.arange(sequences + 1) * size // sequences for size in (m, n)) if sequences else ()
    return Pattern(row_ptr, col_idx, (rows, cols), block, device, offsets)


# ---- racing ----


def _key(context: _context.Context, pattern: Plans, problem: Problem) -> str:
    text = ctypes.create_string_buffer(1024)
    _abi.check(
        _abi.lib.sat_problem_key(
            context.handle,
            pattern.handle(context.device),
            ctypes.byref(problem.struct),
            text,
            len(text),
        )
    )
    return text.value.decode()


def _prepare(device: str, effort: str, key: str, text: str) -> tuple[_context.Context, Plans, Problem]:
    """A noted problem, and a context of its own: threads and cold or warm are in its key alone."""
    words, known = read_words(text), read_words(key)
    try:
        if "dynamic" in words:  # what is expected is in the key alone
            words["density"] = known["density"]
        problem = read_problem(words)
        pattern = make_pattern(words, device, 1)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(f"a note that cannot be read ({error}): {text}") from None
    measure, threads = int(known.get("measure") == "warm"), int(known.get("threads", 0))
    context = _context.Context(device, _abi.EFFORTS[effort], measure=measure, threads=threads)
    for seed in range(2, _SEEDS + 1):
        if _key(context, pattern, problem) == key:
            break
        pattern = make_pattern(words, device, seed)
    return context, pattern, problem


def tune(device: str, effort: str, key: str, text: str) -> _race.Race:
    """Races a noted problem."""
    context, pattern, problem = _prepare(device, effort, key, text)
    return _race.run(pattern, device, problem, fresh=False, context=context)


def share(device: str, effort: str, key: str, text: str, agreement: _abi.Agreement) -> _abi.PlanInfo:
    """Races a noted problem, or waits until another rank has, and checks its winner."""
    context, pattern, problem = _prepare(device, effort, key, text)
    _abi.check(_abi.lib.sat_context_agree(context.handle, ctypes.byref(agreement)))
    handle, plan = pattern.handle(device), ctypes.c_void_p()
    _abi.check(
        _abi.lib.sat_plan_create(context.handle, handle, ctypes.byref(problem.struct), ctypes.byref(plan))
    )
    return Plan(plan.value, handle).info()
