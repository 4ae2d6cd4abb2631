"""Races as Python sees them: records, a table, a frame, JSON; and tuning ahead of time."""

from __future__ import annotations

import ctypes
import dataclasses
import html
import inspect
from collections.abc import Iterable
from typing import Any

from . import _abi, _arrays, _attention, _context, _grouped, _mask, _pattern, _products
from ._convert import check_columns
from ._matrix import BsrMatrix
from ._pattern import Patterned, Plans, Problem, names_of, percent_sparse
from ._sparse import as_bsr, is_sparse


@dataclasses.dataclass
class Record:
    """One variant's part in a race."""

    variant: str
    verdict: str  # "ok", "wrong", "error", "skipped", "memory"
    seconds: float | None
    flops_per_second: float | None
    error: float | None
    message: str
    revision: str
    may_win: bool
    dense: bool
    library: bool
    spread: float
    runs: int
    estimate_seconds: float
    prepare_seconds: float
    workspace_bytes: int
    least_seconds: float | None = None  # the fastest run
    threads: int = 0  # on which a short run takes the least time; 0: on all


class Race(list):
    """The records of one race, the winner first. Prints as a table; `frame()` is for pandas, `as_dict()` for
    JSON."""

    def __init__(
        self,
        records: Iterable[Record],
        problem: dict,
        device: dict,
        cached: bool,
        tuning_seconds: float,
        peak_bytes: int,
        best: str | None,
        busy: bool = False,
    ):
        super().__init__(records)
        self.problem, self.device, self.cached = problem, device, cached
        self.tuning_seconds, self.peak_bytes, self._best = tuning_seconds, peak_bytes, best
        self.busy = busy  # other work disturbed this race, so its times are too long

    @property
    def best(self) -> Record | None:
        return next((r for r in self if r.variant == self._best), None)

    def frame(self) -> Any:
        """A pandas.DataFrame, one row a variant."""
        import pandas

        return pandas.DataFrame([dataclasses.asdict(r) for r in self])

    def as_dict(self) -> dict[str, Any]:
        """As `sparse_autotune race --json` prints it."""
        return {
            "version": 1,
            "problem": self.problem,
            "device": self.device,
            "cached": self.cached,
            "tuning_seconds": self.tuning_seconds,
            "peak_bytes": self.peak_bytes,
            "best": self._best,
            "busy": self.busy,
            "results": [dataclasses.asdict(r) for r in self],
        }

    def title(self) -> str:
        p = self.problem
        if "heads" in p:
            rest = (
                ", causal" * p["causal"]
                + (f", window {p['window']}" if p["window"] else "")
                + (f", {p['sequences']} sequences" if p["sequences"] else "")
            )
            heads = f"{p['heads']} heads" + (f" over {p['kv_heads']}" if p["kv_heads"] != p["heads"] else "")
            return (
                f"{p['op']} {p['dtype']} batch {p['batch']}, {heads}, {p['m']} queries, {p['n']} keys, size "
                f"{p['dim']}{rest}, {100 * p['density']:.1f} % of the blocks, on {self.device['name']}"
            )
        if "groups" in p:
            return (
                f"{p['op']} {p['dtype']} {p['m']}x{p['n']}x{p['k']}, {p['groups']} groups, on "
                f"{self.device['name']}"
            )
        return (
            f"{p['op']} {p['dtype']} {p['m']}x{p['n']}x{p['k']}, block {p['block'][0]}x{p['block'][1]}, "
            f"{p['stored_blocks']} blocks ({percent_sparse(p['density'])})"
            f"{', fixed values' if 'fixed' in p['key'].split() else ''}, on {self.device['name']}"
        )

    def __str__(self) -> str:
        names = [r.variant + (f" ({r.revision})" if r.library else "") for r in self]
        width = max(map(len, names), default=0)
        lines = [self.title()]
        for name, r in zip(names, self):
            rate = (
                f"{r.flops_per_second / 1e9:10.1f} GFLOPS" if r.flops_per_second else " " * 10 + "-" + " " * 6
            )
            note = "" if r.may_win or r.verdict != "ok" else "a rival to show, cannot win"
            lines.append(
                f"  {name:<{width}}  {_duration(r.seconds):>10}  {_spread(r):>8}  {rate}  {r.verdict:<7}  "
                f"{r.message or note}".rstrip()
            )
        return "\n".join([*lines, f"  best: {self._best or 'none'}", *([f"  {BUSY}"] if self.busy else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(r.variant)}</td>"
            f"<td style='text-align:right'>{_duration(r.seconds)}</td>"
            f"<td style='text-align:right'>{_spread(r)}</td>"
            f"<td style='text-align:right'>{r.flops_per_second / 1e9 if r.flops_per_second else 0:.1f}</td>"
            f"<td>{r.verdict}</td><td>{html.escape(r.message)}</td></tr>"
            for r in self
        )
        busy = f"<p>{BUSY}</p>" if self.busy else ""
        return (
            f"<p>{html.escape(self.title())}</p>{busy}<table><tr><th>variant</th><th>time</th><th>spread</th>"
            f"<th>GFLOPS</th><th>check</th><th></th></tr>{rows}</table>"
        )


BUSY = "the machine was busy: these times are too long"


def _spread(r: Record) -> str:
    """Half of the distance between the quartiles, beside the median."""
    if not r.seconds:
        return "-"
    return f"±{100 * r.spread / r.seconds:.1f} %" if r.runs > 1 else "one run"


def _duration(seconds: float | None) -> str:
    if not seconds:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def _check_names(only: Any, context: _context.Context) -> bytes | None:
    """`only` as the library takes it: each name must be a variant's."""
    if only is None:
        return None
    try:
        names = [name for name in (only if isinstance(only, str) else ",".join(only)).split(",") if name]
    except TypeError:
        raise TypeError(f"only is {only!r}; expected names of variants") from None
    known = _flags_by_name(context)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        held = "" if len(unknown) == len(names) else f", which has {unknown[0]!r}"
        raise ValueError(
            f"only is {only!r}{held}; expected variants of {context.device}: benchmark without only shows "
            "those that fit"
        )
    return ",".join(names).encode()


def run(
    pattern: Plans,
    device: str,
    problem: Problem,
    *,
    fresh: bool,
    only: Iterable[str] | str | None = None,
    keep: bool = True,
    context: _context.Context | None = None,
) -> Race:
    """`context`: instead of the device's own."""
    context, handle = context or _context.get(device), ctypes.c_void_p()
    options = _abi.RaceOptions(
        fresh=fresh,
        discard=not keep,
        only=_check_names(only, context),
        progress=_abi.PROGRESS_FN(_abi.watch()),
    )
    try:
        _abi.check(
            _abi.lib.sat_race_run(
                context.handle,
                pattern.handle(device),
                ctypes.byref(problem.struct),
                ctypes.byref(options),
                ctypes.byref(handle),
            ),
            names_of(problem),
        )
        return _read(handle, context, pattern, problem)
    finally:
        _abi.lib.sat_race_free(handle)


def _flags_by_name(context: _context.Context) -> dict[str, int]:
    found = {}
    for i in range(_abi.lib.sat_variant_count(context.handle)):
        v = _abi.lib.sat_variant_at(context.handle, i).contents
        found[v.name.decode()] = v.flags
    return found


def _read(handle: ctypes.c_void_p, context: _context.Context, pattern: Plans, problem: Problem) -> Race:
    info = _abi.RaceInfo()
    _abi.check(_abi.lib.sat_race_get_info(handle, ctypes.byref(info)))
    flags, records = _flags_by_name(context), []
    for i in range(_abi.lib.sat_race_count(handle)):
        r = _abi.lib.sat_race_at(handle, i).contents
        name, ok = r.variant.decode(), r.verdict == 1
        f = flags.get(name, 0)
        records.append(
            Record(
                name,
                _abi.VERDICTS.get(r.verdict, "error"),
                r.seconds or None,
                info.flops / r.seconds if r.seconds else None,
                r.error if ok else None,
                r.message.decode(errors="replace"),
                r.revision.decode(),
                bool(r.may_win),
                bool(f & _abi.V_DENSE),
                bool(f & _abi.V_LIBRARY),
                r.spread,
                r.runs,
                r.estimate_seconds,
                r.prepare_seconds,
                r.workspace_bytes,
                r.least_seconds or None,
                r.threads,
            )
        )
    best = _abi.lib.sat_race_best(handle)
    d = context.info
    device = {
        "backend": "cuda" if d.backend == _abi.CUDA else "cpu",
        "name": d.name.decode(),
        **_context.workers(d),
        "measured": bool(d.measured),
    }
    winner = best.contents.variant.decode() if best else None
    return Race(
        records,
        _describe(pattern, problem.struct, info, context),
        device,
        bool(info.cached),
        info.seconds,
        info.peak_bytes,
        winner,
        bool(info.disturbed),
    )


def _describe(
    pattern: Plans,
    p: _abi.Problem,
    info: _abi.RaceInfo,
    context: _context.Context,
) -> dict[str, Any]:
    dtype = _abi.DTYPE_SHORT[p.a_dtype] + (":f32" if p.c_dtype != p.a_dtype else "")
    d = context.info
    rate = d.tf32_rate if p.flags & _abi.ALLOW_TF32 and p.a_dtype == _abi.F32 else d.flop_rate[p.a_dtype]
    floor = max(info.flops / rate if rate else 0, info.bytes / d.memory_rate if d.memory_rate else 0)
    if not isinstance(pattern, Patterned):
        return {
            "op": _abi.OP_NAMES[p.op],
            "m": p.m,
            "n": p.n,
            "k": p.k,
            "groups": p.grouped.groups,
            "block": [1, 1],  # as its key has it
            "dtype": dtype,
            "stored_blocks": 0,
            "density": 0.0,
            "flops": info.flops,
            "bytes": info.bytes,
            "batch": 1,
            "floor_seconds": floor,
            "key": info.key.decode(),
        }
    view, sampled = pattern.view(), p.op == _abi.SAMPLED
    transposed = p.op == _abi.MATMUL and bool(p.matmul.transpose)
    rows, cols = pattern.shape[::-1] if transposed else pattern.shape
    m, n, k = (rows, cols, p.k) if sampled else (rows, p.n, cols)
    found = {
        "op": _abi.OP_NAMES[p.op],
        "m": m,
        "n": n,
        "k": k,
        "block": list(pattern.block),
        "dtype": dtype,
        "stored_blocks": pattern.stored_blocks,
        "density": view.density,
        "flops": info.flops,
        "bytes": info.bytes,
        "batch": p.batch,
        "transpose": transposed,
        "floor_seconds": floor,
        "key": info.key.decode(),
    }
    if p.op in (_abi.ATTENTION, _abi.ATTENTION_BACKWARD):
        t = p.attention
        found |= {
            "m": p.m,
            "n": p.n,
            "k": t.dim,
            "heads": t.heads,
            "kv_heads": t.kv_heads,
            "dim": t.dim,
            "value_dim": t.value_dim or t.dim,
            "softcap": t.softcap,
            "sinks": bool(t.sinks),
            "causal": bool(t.causal),
            "window": t.window,
            "sequences": view.sequences,
            "head_masks": view.rows != p.m,
            "lse": bool(t.lse),
        }
    return found


def _dense_columns(a: BsrMatrix, b: Any, left: bool) -> tuple[_arrays.Operand, int]:
    x = _arrays.describe(b, "A" if left else "B")
    inner = a.shape[0] if left else a.shape[1]
    if len(x.shape) not in (1, 2):
        raise ValueError(f"{'A' if left else 'B'} has {len(x.shape)} dimensions; expected 1 or 2")
    have = x.shape[-1] if left else x.shape[0]
    if have != inner:
        raise ValueError(
            f"{'A' if left else 'B'} has shape {x.shape}; expected {inner} {'columns' if left else 'rows'}"
        )
    return x, 1 if len(x.shape) == 1 else x.shape[0] if left else x.shape[1]


def benchmark(
    A: Any,
    B: Any,
    *operands: Any,
    fresh: bool = True,
    only: Iterable[str] | str | None = None,
    allow_tf32: bool | None = None,
    allow_dense: bool = False,
    deterministic: bool = True,
    **words: Any,
) -> Race:
    """Races every variant for ``A @ B`` and returns all results, each verified on made-up operands of the
    same kind.

    A and B are as in `matmul`; their values are not read. Where the sparse one is frozen, values are fixed in
    the race, too: converting them counts for nothing. `fresh=False` takes a race from the cache if there is
    one; `only` names the variants that take part. ``benchmark(attention, q, k, v, mask, causal=True)`` races
    attention with the words that it takes itself, and with ``backward=True`` its gradients;
    ``benchmark(grouped_matmul, x, w, offsets)`` races products of groups, and with ``backward=True`` the
    gradient to w, as ``benchmark(grouped_weights, x, z, offsets)`` does.

    >>> import numpy as np, sparse_autotune as sa
    >>> A = sa.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=16)
    >>> race = sa.benchmark(A, np.ones((64, 8), np.float32))
    >>> race.best.verdict
    'ok'
    >>> race.problem["stored_blocks"]
    4
    >>> q = np.ones((1, 2, 64, 16), np.float32)
    >>> sa.benchmark(sa.attention, q, q, q, causal=True).best.verdict
    'ok'
    """
    find_problems = _problems_of(A)
    if find_problems is not None:
        pattern, x, problems = find_problems(
            B, *operands, allow_tf32=allow_tf32, deterministic=deterministic, **words
        )
        with _abi.openmp_threads(_arrays.threads_for(x)):
            return run(pattern, x.device, problems[-1], fresh=fresh, only=only)
    if operands or words:
        raise TypeError(
            f"benchmark of a product got {', '.join(words) or 'more than two operands'}; expected none, "
            "which are for attention and products of groups"
        )
    left = not is_sparse(A)
    a, b = (as_bsr(B, "B"), A) if left else (as_bsr(A, "A"), B)
    x, n = _dense_columns(a, b, left)
    values = _arrays.describe(a._values, "values")
    _products.check_pair(values, x, "B" if left else "A", "A" if left else "B")
    if n == 0 or 0 in a.shape:
        raise ValueError(f"{'A' if left else 'B'} has shape {x.shape}; expected something to multiply")
    options = _products.Options(allow_tf32=allow_tf32, allow_dense=allow_dense, deterministic=deterministic)
    view = _products.View(x, left, "B")
    features = a.shape[1] if left else a.shape[0]
    c = _products.canonical(features, n, 1, features) if left else _products.canonical(features, n, n, 1)
    problem = Problem(
        op=_abi.MATMUL,
        matmul=(a.is_transposed != left,),
        n=n,
        a_dtype=x.dtype,
        b_dtype=x.dtype,
        c_dtype=x.dtype,
        b=view.layout,
        c=(*c, 0),
        a_align=_pattern.alignment(values.pointer, x.device),
        b_align=_pattern.alignment(x.pointer, x.device),
        c_align=_pattern.alignment(0, x.device),
        flags=options.flags_for(x) | _fixed_flag(a),
    )
    with _abi.openmp_threads(_arrays.threads_for(x)):
        return run(a._pattern.kind, x.device, problem, fresh=fresh, only=only)


def _fixed_flag(a: BsrMatrix) -> int:
    return _abi.FIXED_VALUES if a.is_frozen else 0


def _attention_problems(*operands: Any, **words: Any) -> tuple:
    """The pattern, q, and the problems that attention of such operands is: forward, and with `backward` the
    gradients after it."""
    # what is missing, or too much, is reported by its own name alone
    given = _attention_words.bind(*operands, **words)
    return _bound_problems(*given.args, **given.kwargs)


def _bound_problems(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    backward: bool = False,
    deterministic: bool = True,
    allow_tf32: bool | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> tuple:
    mask = None if mask is None else _mask.as_mask(mask)
    spec = _attention.Spec(causal, window, scale, deterministic, allow_tf32, mask, softcap)
    if sinks is not None:
        _attention.check_sinks(sinks.shape, q.shape)
    lse = _mask.flag(return_lse, "return_lse")
    return _attention.problems(q, k, v, mask, spec, lse, backward, sinks is not None)


_attention_words = inspect.signature(_bound_problems)


def _problems_of(function: Any) -> Any:
    """What gives the problems of a call of this function; None: it is no function of the package's."""
    if function is _attention.attention:
        return _attention_problems
    if function is _grouped.grouped_matmul:
        return _grouped.matmul_problems
    return _grouped.weight_problems if function is _grouped.grouped_weights else None


def tune(
    A: Any,
    columns: Any,
    *operands: Any,
    gradients: bool = False,
    left: bool = False,
    effort: str = "full",
    allow_tf32: bool | None = None,
    **words: Any,
) -> list[dict[str, Any]]:
    """Races ahead of time what ``A @ B`` will need for B of so many columns, and remembers it; one dict a
    problem.

    `left` is for ``B @ A`` with B of so many rows, as in a linear layer; `gradients` adds the products of the
    backward pass, of a frozen A that of B alone. ``tune(attention, q, k, v, mask, ...)`` and
    ``tune(grouped_matmul, x, w, offsets, ...)`` do it for operands like these.

    >>> import numpy as np, sparse_autotune as sa
    >>> A = sa.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=16)
    >>> [p["verified"] for p in sa.tune(A, columns=[1, 8], effort="quick")]
    [True, True]
    """
    if effort not in ("quick", "full"):
        raise ValueError(f"effort is {effort!r}; expected 'quick' or 'full'")
    find_problems = _problems_of(A)
    if find_problems is not None:
        if gradients:
            words["backward"] = True
        pattern, x, problems = find_problems(columns, *operands, allow_tf32=allow_tf32, **words)
        with _abi.openmp_threads(_arrays.threads_for(x)):
            return [_plan_facts(pattern.plan(x.device, problem, effort)) for problem in problems]
    if operands or words:
        raise TypeError(
            f"tune of a product got {', '.join(words) or 'more than two operands'}; expected none, which are "
            "for attention"
        )
    a = as_bsr(A, "A")
    sizes = [check_columns(n) for n in (columns if isinstance(columns, Iterable) else [columns])]
    values = _arrays.describe(a._values, "values")
    flags, device = _products.tf32_flag(allow_tf32, values) | _fixed_flag(a), values.device
    found = []
    with _abi.openmp_threads(_arrays.threads_for(values)):
        for n in sizes:
            for problem in _problems(
                a, n, values.dtype, left, gradients, flags, _pattern.alignment(0, device)
            ):
                found.append(_plan_facts(a._pattern.kind.plan(device, problem, effort)))
    return found


def _problems(
    a: BsrMatrix,
    n: int,
    dtype: int,
    left: bool,
    gradients: bool,
    flags: int,
    align: int,
) -> list[Problem]:
    same = {
        "a_dtype": dtype,
        "b_dtype": dtype,
        "c_dtype": dtype,
        "a_align": align,
        "b_align": align,
        "c_align": align,
        "flags": flags,
    }
    rows, cols = a.shape
    inner, features = (rows, cols) if left else (cols, rows)

    def layout(size: int) -> tuple:
        return (*_products.canonical(size, n, 1 if left else n, size if left else 1), 0)

    flipped = a.is_transposed != left
    problems = [Problem(op=_abi.MATMUL, matmul=(flipped,), n=n, b=layout(inner), c=layout(features), **same)]
    if gradients:
        problems.append(
            Problem(op=_abi.MATMUL, matmul=(not flipped,), n=n, b=layout(features), c=layout(inner), **same)
        )
    if gradients and not a.is_frozen:
        x, y = (inner, features) if flipped else (features, inner)
        x_layout = (*_products.canonical(x, n, 1 if left else n, x if left else 1), 0)
        y_layout = (*_products.canonical(n, y, y if left else 1, 1 if left else n), 0)
        problems.append(Problem(op=_abi.SAMPLED, k=n, a=x_layout, b=y_layout, **same))
    return problems


def _plan_facts(plan: Any) -> dict[str, Any]:
    info = plan.info()
    return {
        "variant": info.variant.decode(),
        "cached": bool(info.cached),
        "tuned": bool(info.tuned),
        "verified": bool(info.verified),
        "pattern_verified": bool(info.pattern_verified),
        "tuning_seconds": info.tuning_seconds,
        "workspace_bytes": info.workspace_bytes,
        "flops": info.flops,
        "bytes": info.bytes,
    }
