"""Races drawn as one self-contained HTML page: bars of each race, speed over density and block size, the
roofline.

No script, no font and no picture comes from elsewhere: the page can be mailed, and opens in ten years.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._pattern import percent_sparse

__all__ = ["load", "page"]

# ---- reading ----


def load(path: str | Path) -> list[dict[str, Any]]:
    """The races of a file: of ``race``, of several, or a record of ``bench/results``."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bytes that are no text, too
        raise ValueError(f"{path} is not JSON: {error}") from None
    try:
        races = list(_races(data))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not races:
        raise ValueError(f"{path} holds no races")
    return races


def _races(data: Any) -> Iterable[dict]:
    if "races" in _typed(data, dict, "a race"):
        for race in _typed(data["races"], list, "races"):
            yield from _races(race)
    elif "results" in data and "problem" in data:
        yield _checked(data)
    elif "rows" in data:
        for row in _typed(data["rows"], list, "rows"):
            race = _from_record(
                _typed(row, dict, "a row"), _typed(data.get("machine") or {}, dict, "machine")
            )
            if race:
                yield _checked(race)


_KINDS = {dict: "an object", list: "a list", str: "text"}


def _typed(x: Any, kind: type, name: str) -> Any:
    if not isinstance(x, kind):
        raise ValueError(f"{name} is {x!r:.60}; expected {_KINDS[kind]}")
    return x


def _number(x: Any, name: str, least: float = 0) -> float:
    """A number that can be drawn."""
    if not isinstance(x, (int, float)) or not (x == least == 0 or max(least, 1e-30) <= x <= 1e30):
        raise ValueError(
            f"{name} is {x!r:.60}; expected a number of at least {least}, such as people measure"
        )
    return x


def _checked(race: dict) -> dict:
    """A race in which the page finds what it reads."""
    problem, device = _typed(race["problem"], dict, "problem"), _typed(race.get("device"), dict, "device")
    for name, rate in _typed(device.get("ceilings") or {}, dict, "ceilings").items():
        _number(rate, name)
    block = _typed(problem.get("block"), list, "block")
    if len(block) != 2:
        raise ValueError(f"block is {block!r:.60}; expected two sizes")
    for size in block:
        _number(size, "block", 1)
    _typed(device.get("name", ""), str, "name")
    for name in ("op", "dtype"):
        _typed(problem.get(name), str, name)
    for name in ("m", "n", "k"):
        _number(problem.get(name), name)
    for name in ("density", "flops", "bytes", "floor_seconds"):
        _number(problem.get(name) or 0, name)
    if (problem.get("density") or 0) > 1:
        raise ValueError(f"density is {problem['density']!r:.60}; expected a share from 0 to 1")
    for result in _typed(race["results"], list, "results"):
        for name in ("variant", "verdict"):
            _typed(_typed(result, dict, "a result").get(name), str, name)
        for name in ("seconds", "flops_per_second", "spread"):
            _number(result.get(name) or 0, name)
    return race


def _from_record(row: dict, machine: dict) -> dict | None:
    """A row of a benchmark record as a race: our variant beside its rivals."""
    problem = row.get("problem")
    if not isinstance(problem, dict) or not row.get("seconds") or "block" not in problem:
        return None
    flops, seconds = _number(problem.get("flops") or 0, "flops"), _number(row["seconds"], "seconds")
    rivals, ratios = (_typed(row.get(name) or {}, dict, name) for name in ("rival_seconds", "ratios"))
    times = {_typed(row.get("variant") or "sparse_autotune", str, "variant"): seconds}
    times.update({k: _number(v, "rival_seconds") for k, v in rivals.items() if v})
    if not rivals:
        times.update(
            {
                k: seconds * _number(v, "ratios")
                for k, v in ratios.items()
                if isinstance(v, (int, float)) and v > 0
            }
        )
    results = [
        {
            "variant": name,
            "verdict": "ok",
            "seconds": s,
            "flops_per_second": flops / s if flops else None,
            "dense": "dense" in name,
            "library": name != row.get("variant"),
            "may_win": True,
            "message": "",
        }
        for name, s in times.items()
    ]
    block = problem["block"] if isinstance(problem["block"], list) else [problem["block"]] * 2
    full = {
        "op": "matmul",
        "m": 0,
        "n": 0,
        "k": 0,
        "dtype": "",
        "density": 0,
        "flops": flops,
        "floor_seconds": row.get("floor_seconds"),
        **problem,
        "block": block,
    }
    device = {
        "name": machine.get("name", ""),
        "backend": machine.get("backend", ""),
        "ceilings": _rates(machine.get("ceilings"), full.get("threads")),
    }
    return {"problem": full, "device": device, "best": row.get("variant"), "results": results}


def _rates(ceilings: Any, threads: Any) -> dict:
    """The rates that a record's machine was seen to reach, by dtype, and its memory's; a CPU's depend on
    the number of threads."""
    if not isinstance(ceilings, list):
        return ceilings or {}
    known = next((c for c in ceilings if isinstance(c, dict) and c.get("threads") == threads), {})
    names = {"peak_f32": "f32", "peak_f64": "f64", "read_bandwidth": "memory"}
    return {short: known[name] for name, short in names.items() if name in known}


# ---- words and numbers ----


def _time(seconds: float | None) -> str:
    if not seconds:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _rate(flops: float | None) -> str:
    if not flops:
        return "–"
    unit, scale = next(((u, s) for u, s in (("P", 1e15), ("T", 1e12)) if flops >= s), ("G", 1e9))
    return f"{flops / scale:.3g} {unit}FLOPS"


def _title(problem: dict) -> str:
    block = "×".join(map(str, problem["block"]))
    density = problem.get("density") or 0
    sizes = (
        f"{problem.get('op', 'matmul')} {problem.get('dtype', '')} "
        f"{problem.get('m', '?')}×{problem.get('n', '?')}×{problem.get('k', '?')}"
    )
    return ", ".join((sizes, f"block {block}", percent_sparse(density), *_setting(problem)))


def _setting(problem: dict) -> tuple[str, ...]:
    """In words, what a problem is beside its sizes, block and density; its key says so."""
    key = problem.get("key")
    facts = dict((word.split("=", 1) + [""])[:2] for word in key.split()) if isinstance(key, str) else {}

    def number(name: str) -> float:
        try:
            return float(facts.get(name, 0))
        except ValueError:
            return 0.0

    columns = "col" in facts.get("layout", "")
    said = [
        ("transposed", facts.get("t") == "1"),
        ("by columns", columns and "row" not in facts["layout"]),
        (f"layout {facts.get('layout')}", columns and "row" in facts["layout"]),
        ("TF32", "tf32" in facts),
        (f"batch {facts.get('batch')}", number("batch") > 1),
        ("bias", number("bias") > 0),
        (facts.get("act", ""), facts.get("act", "none") != "none"),
        ("beta", number("beta") != 0),
        (
            f"{facts.get('heads')} heads"
            + (f" over {facts.get('kv_heads')}" if facts.get("kv_heads") != facts.get("heads") else ""),
            "heads" in facts,
        ),
        ("causal", "causal" in facts),
        (f"window {facts.get('window')}", number("window") > 0),
        (f"{facts.get('sequences')} sequences", number("sequences") > 0),
        ("uneven rows", number("skew") > 3),
        ("shared columns", number("overlap") > 1.5 * number("density") > 0),
        ("cold", facts.get("measure") == "cold"),
    ]
    return tuple(word for word, true in said if true)


def _kind(result: dict) -> str:
    return "dense" if result.get("dense") else "library" if result.get("library") else "ours"


def _winner(race: dict) -> dict | None:
    return next((r for r in race["results"] if r["variant"] == race.get("best") and r.get("seconds")), None)


def _fastest(race: dict, kind: str) -> dict | None:
    found = [r for r in race["results"] if _kind(r) == kind and r.get("seconds") and r["verdict"] == "ok"]
    return min(found, key=lambda r: r["seconds"], default=None)


def _e(text: Any) -> str:
    return html.escape(str(text), quote=True)


# ---- drawings ----


def _spread(r: dict) -> str:
    return (
        f"half of the runs within {100 * r['spread'] / r['seconds']:.1f} % of the median"
        if r.get("spread")
        else ""
    )


def _bars(race: dict) -> str:
    shown = sorted(
        (r for r in race["results"] if r.get("seconds") and r["verdict"] == "ok"), key=lambda r: r["seconds"]
    )
    if not shown:
        return '<p class="note">No variant had a right result.</p>'
    longest = shown[-1]["seconds"]
    rows = []
    for r in shown:
        width = max(0.4, 100 * r["seconds"] / longest)
        best = r["variant"] == race.get("best")
        name = r["variant"] + (f" ({r['revision']})" if r.get("library") and r.get("revision") else "")
        rows.append(
            f'<div class="name{" best" if best else ""}" title="{_e(name)}">{_e(name)}</div>'
            f'<div class="track"><div class="bar {"winner" if best else _kind(r)}" '
            f'style="width:{width:.2f}%"></div></div>'
            f'<div class="number" title="{_spread(r)}">{_time(r["seconds"])}</div>'
            f'<div class="number soft">{_rate(r.get("flops_per_second"))}</div>'
        )
    others = [r for r in race["results"] if r["verdict"] in ("wrong", "error", "memory")]
    busy = (
        '<p class="note bad">The machine was busy: these times are too long.</p>' if race.get("busy") else ""
    )
    note = busy + "".join(
        f'<p class="note bad">{_e(r["variant"])}: {_e(r["verdict"])} {_e(r.get("message", ""))}</p>'
        for r in others
    )
    return f'<div class="bars">{"".join(rows)}</div>{note}'


class _Axes:
    """A drawing with logarithmic axes."""

    W, H, L, R, T, B = 560, 320, 66, 18, 16, 44

    def __init__(
        self,
        xs: list[float],
        ys: list[float],
        x_label: str,
        y_label: str,
        x_text: Any,
        y_text: Any,
        x_ticks: list[float] | None = None,
    ):
        self.x0, self.x1 = self._span(xs, 1.12)
        self.y0, self.y1 = self._span(ys, 1.25)
        self.parts = [f'<svg viewBox="0 0 {self.W} {self.H}" role="img">']
        for y in self._ticks(self.y0, self.y1):
            py = self.y(y)
            self.parts.append(
                f'<line class="grid" x1="{self.L}" x2="{self.W - self.R}" y1="{py:.1f}" y2="{py:.1f}"/><text '
                f'class="tick" x="{self.L - 7}" y="{py + 4:.1f}" text-anchor="end">{y_text(y)}</text>'
            )
        said = -math.inf
        for x in x_ticks or self._ticks(self.x0, self.x1):
            px = self.x(x)
            self.parts.append(
                f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{self.T}" y2="{self.H - self.B}"/>'
            )
            if px - said > 34:  # else one number would stand on the other
                said = px
                self.parts.append(
                    f'<text class="tick" x="{px:.1f}" y="{self.H - self.B + 16}" '
                    f'text-anchor="middle">{x_text(x)}</text>'
                )
        self.parts.append(
            f'<text class="label" x="{(self.L + self.W - self.R) / 2}" y="{self.H - 6}" '
            f'text-anchor="middle">{_e(x_label)}</text>'
        )
        self.parts.append(
            f'<text class="label" transform="translate(13 {(self.T + self.H - self.B) / 2}) rotate(-90)" '
            f'text-anchor="middle">{_e(y_label)}</text>'
        )

    @staticmethod
    def _span(values: list[float], air: float) -> tuple[float, float]:
        low, high = min(values), max(values)
        return low / air, high * air

    @staticmethod
    def _ticks(low: float, high: float) -> list[float]:
        def steps(digits: tuple) -> list[float]:
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            return [t for t in (d * 10.0**e for e in decades for d in digits) if low <= t <= high]

        inside = steps((1, 2, 5))
        if len(inside) < 3:
            inside = steps((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))
        return inside if len(inside) <= 9 else [t for t in inside if f"{t:.0e}"[0] == "1"]

    def x(self, v: float) -> float:
        return self.L + (self.W - self.L - self.R) * math.log(v / self.x0) / math.log(self.x1 / self.x0)

    def y(self, v: float) -> float:
        return (
            self.H - self.B - (self.H - self.T - self.B) * math.log(v / self.y0) / math.log(self.y1 / self.y0)
        )

    def line(self, points: list[tuple[float, float]], color: str, dash: str = "") -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" '
            f'stroke-width="2.2"{f" stroke-dasharray={dash!r}" if dash else ""}/>'
        )

    def dot(self, x: float, y: float, color: str, title: str, size: float = 4.2) -> None:
        self.parts.append(
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{size}" fill="{color}" stroke="#fff" '
            f'stroke-width="1.2"><title>{_e(title)}</title></circle>'
        )

    def done(self, legend: list[tuple[str, str]]) -> str:
        words = "".join(
            f'<span><i style="background:{color}"></i>{_e(text)}</span>' for color, text in legend
        )
        return "".join(self.parts) + f'</svg><div class="legend">{words}</div>'


_COLORS = ["#0b6e99", "#c2571a", "#3d7d3a", "#8a3fa0", "#a8323e", "#7a6a12", "#33508f", "#4d4d4d"]


def _groups(races: list[dict]) -> dict[tuple, list[dict]]:
    """Races that differ in nothing but density and block, by device."""
    found: dict[tuple, list[dict]] = {}
    for race in races:
        p = race["problem"]
        if _winner(race) and p.get("density"):
            found.setdefault(
                (race["device"].get("name", ""), p["op"], p["dtype"], p["m"], p["n"], p["k"], _setting(p)), []
            ).append(race)
    return found


def _density(race: dict) -> float:
    """With as few digits as come within 3 %: patterns of one density differ a little from grid to grid."""
    exact = race["problem"]["density"]
    rounded = (float(f"{exact:.{digits}g}") for digits in (1, 2, 3))
    return next((r for r in rounded if abs(r - exact) <= 0.03 * exact), exact)


def _best_points(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """One point an x, the best."""
    found: dict[float, float] = {}
    for x, y in points:
        found[x] = max(y, found.get(x, 0.0))
    return sorted(found.items())


def _curves(axes: _Axes, lines: dict[str, list[tuple[float, float]]], say: Any) -> str:
    legend = []
    for color, (name, line) in zip(_COLORS * 4, lines.items()):
        axes.line(line, color)
        for x, y in line:
            axes.dot(x, y, color, f"{name}, {say(x, y)}")
        legend.append((color, name))
    return axes.done(legend)


def _speed_up(group: list[dict]) -> str | None:
    """Speed-up over the dense product, over density, one line a block size."""
    found: dict[tuple, list[tuple[float, float]]] = {}
    for race in group:
        dense, best = _fastest(race, "dense"), _winner(race)
        if dense and best:
            found.setdefault(tuple(race["problem"]["block"]), []).append(
                (_density(race), dense["seconds"] / best["seconds"])
            )
    lines = {
        "block " + (f"{r}" if r == c else f"{r}×{c}"): _best_points(line)
        for (r, c), line in sorted(found.items())
    }
    points = [p for line in lines.values() for p in line]
    densities = sorted({x for x, _ in points})
    if len(densities) < 2:
        return None
    axes = _Axes(
        densities,
        [y for _, y in points] + [1.0],
        "density (share of blocks stored)",
        "times faster than dense",
        lambda x: f"{x:g}",
        lambda y: f"{y:g}×",
        densities if len(densities) < 10 else None,
    )
    axes.line([(densities[0], 1.0), (densities[-1], 1.0)], "#9aa1ab", "5 4")
    return _curves(axes, lines, lambda x, y: f"density {x:g}: {y:.2f}× faster than dense")


def _by_block(group: list[dict]) -> str | None:
    """Rate of the winner over block size, one line a density."""
    found: dict[float, list[tuple[float, float]]] = {}
    for race in group:
        best, (r, c) = _winner(race), race["problem"]["block"]
        if best and best.get("flops_per_second"):
            found.setdefault(_density(race), []).append((math.sqrt(r * c), best["flops_per_second"]))
    lines = {f"density {density:g}": _best_points(line) for density, line in sorted(found.items())}
    points = [p for line in lines.values() for p in line]
    sides = sorted({x for x, _ in points})
    if max((len(line) for line in lines.values()), default=0) < 2:
        return None
    axes = _Axes(
        sides,
        [y for _, y in points],
        "block side",
        "rate on stored blocks",
        lambda x: f"{x:g}",
        lambda y: _rate(y).replace("FLOPS", ""),
        sides,
    )
    return _curves(axes, lines, lambda x, y: f"block {x:g}: {_rate(y)}")


def _seen_rates(races: list[dict]) -> dict[str, float]:
    """The most that each rate is said to be by the races of a machine."""
    found: dict[str, float] = {}
    for race in races:
        for name, rate in (race["device"].get("ceilings") or {}).items():
            found[name] = max(rate, found.get(name, 0))
    return found


def _roofline(races: list[dict]) -> str | None:
    """Winners' rates over arithmetic a byte, under the rates that their machine was seen to reach, or that
    the floors of its races imply."""
    points: list[tuple[float, float, str, dict]] = []
    seen = _seen_rates(races)
    # ceilings and slopes; none for what was not seen where something was
    roofs: dict[str, list[tuple[float, float]]] = {}
    for race in races:
        p, best = race["problem"], _winner(race)
        if best and p.get("bytes") and p.get("flops") and p.get("floor_seconds"):
            name = "tf32" if "TF32" in _setting(p) else p["dtype"]
            points.append((p["flops"] / p["bytes"], p["flops"] / best["seconds"], name, race))
            if not seen:
                roofs.setdefault(name, []).append(
                    (p["flops"] / p["floor_seconds"], p["bytes"] / p["floor_seconds"])
                )
            elif seen.get(name) and seen.get("memory"):
                roofs[name] = [(seen[name], seen["memory"])]
    if not points:
        return None
    tops = {
        name: (max(ceiling for ceiling, _ in found), max(slope for _, slope in found))
        for name, found in roofs.items()
    }
    right = max(x for x, *_ in points)
    rates = [y for _, y, *_ in points] + [
        y for ceiling, slope in tops.values() for y in (ceiling, min(ceiling, slope * right))
    ]
    axes = _Axes(
        [x for x, *_ in points] + [1.0],
        rates,
        "operations a byte that must move",
        "rate on stored blocks",
        lambda x: f"{x:g}",
        lambda y: _rate(y).replace("FLOPS", ""),
    )
    colors = dict(zip(sorted({name for *_, name, _ in points}), _COLORS * 4))
    for name, (ceiling, slope) in tops.items():
        knee = min(max(ceiling / slope, axes.x0), axes.x1)
        start = max(axes.x0, axes.y0 / slope)
        axes.line(
            [
                (start, min(ceiling, slope * start)),
                (knee, min(ceiling, slope * knee)),
                (axes.x1, min(ceiling, slope * axes.x1)),
            ],
            colors[name],
            "6 4",
        )
    for x, y, name, race in points:
        axes.dot(x, y, colors[name], f"{_title(race['problem'])}: {_rate(y)}", 4.8)
    return axes.done(
        [
            (color, name + (f", {_rate(tops[name][0])} at most" if name in tops else ""))
            for name, color in colors.items()
        ]
    )


# ---- the page ----

_STYLE = """
:root{--ink:#1d2430;--soft:#667080;--line:#e3e6eb;--paper:#fff;--back:#f3f4f6;--win:#0b6e99;
    --ours:#8bbcd2;--lib:#c9ced6;--dense:#e2b48f}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
    font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:30px;line-height:1.2;margin:0 0 6px}
h2{font-size:19px;margin:40px 0 12px}
.lead{color:var(--soft);margin:0 0 26px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;margin-bottom:10px}
.tile{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:16px 18px}
.tile b{display:block;font-size:26px;line-height:1.25}
.tile span{color:var(--soft);font-size:13px}
.card{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px 20px;
    margin-bottom:16px}
.card h3{margin:0 0 2px;font-size:15px}
.card p.sub{margin:0 0 12px;color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:16px}
.plots .card{margin:0}
svg{width:100%;height:auto;display:block}
.bars{display:grid;grid-template-columns:minmax(min(200px,30vw),38%) 1fr auto auto;gap:5px 12px;
    align-items:center}
.name{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:nowrap;
    overflow:hidden;text-overflow:ellipsis}
.name.best{font-weight:700;color:var(--win)}
.track{background:var(--back);border-radius:4px;height:15px}
.bar{height:15px;border-radius:4px}
.winner{background:var(--win)}
.ours{background:var(--ours)}
.library{background:var(--lib)}
.dense{background:var(--dense)}
.number{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap;font-size:13px}
.soft{color:var(--soft)}
.note{color:var(--soft);font-size:13px;margin:8px 0 0}
.bad{color:#a8323e}
.grid{stroke:var(--line)}
.tick{font-size:11px;fill:var(--soft)}
.label{font-size:12px;fill:var(--soft)}
.legend{display:flex;gap:6px 18px;flex-wrap:wrap;color:var(--soft);font-size:13px;margin:0 0 12px}
.plots .legend{justify-content:center;margin:6px 0 0}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;
    vertical-align:-1px}
"""


def _tiles(races: list[dict]) -> str:
    winners = [(r, _winner(r)) for r in races if _winner(r)]
    best_rate = max((w.get("flops_per_second") or 0 for _, w in winners), default=0)
    gains = [d["seconds"] / w["seconds"] for r, w in winners if (d := _fastest(r, "dense"))]
    checked = sum(res["verdict"] == "ok" for r in races for res in r["results"])
    wrong = sum(res["verdict"] == "wrong" for r in races for res in r["results"])
    facts = [
        (str(len(races)), "races" if len(races) != 1 else "race"),
        (_rate(best_rate), "highest rate, stored blocks only"),
    ]
    if gains:
        facts.append((f"{max(gains):.3g}×", "most gained over the dense product"))
    facts.append(
        (f"{checked}", "results verified" + (f", {wrong} found wrong" if wrong else ", none found wrong"))
    )
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{_e(a)}</b><span>{_e(b)}</span></div>' for a, b in facts)
        + "</div>"
    )


def _plot(title: str, sub: str, drawing: str | None) -> str:
    return (
        f'<div class="card"><h3>{_e(title)}</h3><p class="sub">{_e(sub)}</p>{drawing}</div>'
        if drawing
        else ""
    )


def page(races: list[dict[str, Any]], title: str = "Block-sparse products") -> str:
    """The page as text.

    >>> from sparse_autotune import report
    >>> result = {"variant": "v", "verdict": "ok", "seconds": 1e-3, "flops_per_second": 1e9}
    >>> problem = {"op": "matmul", "m": 8, "n": 8, "k": 8, "block": [4, 4], "dtype": "f32", "density": 0.5}
    >>> race = {"problem": problem, "device": {"name": "here"}, "best": "v", "results": [result]}
    >>> "<html" in report.page([race])
    True
    """
    devices = sorted({r["device"].get("name", "") for r in races if r["device"].get("name")})
    plots = []
    for device in dict.fromkeys(r["device"].get("name", "") for r in races):
        mine = [r for r in races if r["device"].get("name", "") == device]
        roofs = (
            "the rates of arithmetic and memory that the machine was seen to reach"
            if _seen_rates(mine)
            else "what the floors of these races imply"
        )
        where = f"{device}: " if len(devices) > 1 else ""
        plots.append(
            _plot(
                "Roofline",
                (
                    f"{where}each dot is a race's winner; dashed: {roofs}; what stays in a cache may be "
                    "above the slope"
                ),
                _roofline(mine),
            )
        )
    for (device, op, dtype, m, n, k, setting), group in _groups(races).items():
        words = ", ".join((f"{op} {dtype} {m}×{n}×{k}", *setting, *([device] if len(devices) > 1 else [])))
        plots.append(_plot("Speed-up over density", words, _speed_up(group)))
        plots.append(_plot("Rate over block size", words, _by_block(group)))
    cards = []
    for race in races:
        dense, best = _fastest(race, "dense"), _winner(race)
        gain = f", {dense['seconds'] / best['seconds']:.2f}× faster than dense" if dense and best else ""
        cards.append(
            f'<div class="card"><h3>{_e(_title(race["problem"]))}</h3><p class="sub">best: '
            f"{_e(race.get('best') or 'none')}{gain}</p>{_bars(race)}</div>"
        )
    legend = (
        '<div class="legend"><span><i class="winner"></i>winner</span><span><i class="ours"></i>our '
        'other variants</span><span><i class="library"></i>official libraries</span><span><i '
        'class="dense"></i>dense: multiplies by the zeros too</span></div>'
    )
    drawn = "".join(p for p in plots if p)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head><body><main><h1>{_e(title)}</h1>"
        f'<p class="lead">{_e(", ".join(devices))}</p>{_tiles(races)}'
        + (f'<h2>At a glance</h2><div class="plots">{drawn}</div>' if drawn else "")
        + (
            f'<h2>Race by race</h2>{legend}{"".join(cards)}<p class="note">Times are medians; rates count '
            "the "
            "arithmetic on stored blocks only, for dense products too. Every time shown belongs to a result "
            "that was verified in its race.</p></main></body></html>\n"
        )
    )
