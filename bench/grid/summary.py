"""The arithmetic of a grid's summary, its table, and how parts are put together. Standard library alone."""

import math
import statistics

# Peer faster by more than so much and by more than so many seconds: (of ours over the peer's, seconds)
BEHIND = {
    "gpu_products": {"behind_3_percent": (1.03, 2e-6), "behind_25_percent": (1.25, 5e-6)},
    "gpu_attention": {"behind_3_percent": (1.03, 3e-6), "behind_25_percent": (1.25, 5e-6)},
    "cpu_products": {"behind_3_percent": (1.03, 3e-6), "behind_25_percent": (1.25, 5e-6)},
    "cpu_attention": {"behind_3_percent": (1.03, 5e-6), "behind_25_percent": (1.25, 5e-6)},
}
MOST = 4.0  # what one ratio counts at most in the mean, and its inverse at least
DENSE = ("dense_cublas", "dense_mkl", "dense_openblas")


def kind_of(grid):
    """gpu_products of gpu_products, cpu_products of cpu_products_2_threads."""
    return next(kind for kind in BEHIND if grid.startswith(kind))


def is_behind(seconds, peer_seconds, ratio, limit):
    """An error of ours, which has no time, is behind whoever has one."""
    if peer_seconds is None:
        return False
    if seconds is None:
        return True
    return ratio * limit[0] < 1 and seconds - peer_seconds > limit[1]


def counted(ratio):
    return min(MOST, max(1 / MOST, ratio))


def geometric_mean(ratios):
    logs = [math.log(counted(r)) for r in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None


def figures(triples, limits):
    """Of (ours, peer, ratio), where ours is None after an error and a peer is None where nobody took part."""
    triples = [t for t in triples if t[1] is not None or t[0] is None]
    ratios = [1 / MOST if ours is None else ratio for ours, peer, ratio in triples]
    found = {"problems": len(triples)}
    for name, limit in limits.items():
        found[name] = sum(
            ours is None or is_behind(ours, peer, ratio, limit) for ours, peer, ratio in triples
        )
    return {**found, "geometric_mean": rounded(geometric_mean(ratios))}


def rounded(x, digits=4):
    return None if x is None else round(x, digits)


def triple(row):
    return row["seconds"], row["peer_seconds"], row["ratio"]


def best_of(row, names):
    """The triple with these peers alone."""
    peers = {n: p for n, p in row["peers"].items() if n in names and p.get("seconds")}
    if not peers:
        return row["seconds"], None, None
    best = min(peers.values(), key=lambda p: p["seconds"])
    return row["seconds"], best["seconds"], best.get("ratio")


def noise(rows, limits):
    """Ours beside itself: what a difference must exceed to mean anything."""
    pairs = [
        (r["seconds"], r["again_seconds"], r["again_ratio"]) for r in rows if r.get("again_ratio") is not None
    ]
    if not pairs:
        return None
    apart = sorted(abs(math.log(ratio)) for _, _, ratio in pairs)
    return {
        **figures(pairs, limits),
        "median_percent": rounded(100 * math.expm1(statistics.median(apart)), 2),
        "ninth_decile_percent": rounded(
            100 * math.expm1(apart[min(len(apart) - 1, 9 * len(apart) // 10)]), 2
        ),
    }


def worst_first(rows):
    return sorted(rows, key=lambda r: (r["seconds"] is not None, counted_or_last(r), r["index"]))


def counted_or_last(row):
    return math.inf if row["ratio"] is None else row["ratio"]


def strata(rows, limits):
    groups = {}
    for row in rows:
        for name, value in row["strata"].items():
            groups.setdefault(name, {}).setdefault(value, []).append(triple(row))
    return {
        name: {value: figures(some, limits) for value, some in sorted(values.items(), key=natural)}
        for name, values in groups.items()
    }


def natural(item):
    """Ranges by their numbers: "2 to 7" before "16 to 31"."""
    first = str(item[0]).split()[0]
    return float(first) if first.replace(".", "", 1).isdigit() else math.inf, item[0]


def of_peers(rows, limits):
    """Each peer alone where it took part, and the best of those that are not dense."""
    names = sorted({name for row in rows for name in row["peers"]})
    found = {}
    for name in names:
        took_part = [row for row in rows if row["peers"].get(name, {}).get("seconds")]
        found[name] = {
            **figures([best_of(row, {name}) for row in took_part], limits),
            "best": sum(row["peer"] == name for row in rows),
        }
    sparse = {name for name in names if name not in DENSE}
    if len(sparse) < len(names):
        some = [best_of(row, sparse) for row in rows]
        found["all but dense"] = figures([t for t in some if t[1] is not None], limits)
    return found


def summarise(grid, seed, rows, machine):
    """What the record holds of a grid."""
    limits = BEHIND[kind_of(grid)]
    return {
        "seed": seed,
        **figures(map(triple, rows), limits),
        "drawn": len(rows),
        "errors": sum(row["seconds"] is None for row in rows),
        "without_peers": sum(row["peer"] is None for row in rows),
        "others_share": rounded(
            statistics.median([r["others_share"] for r in rows if r.get("others_share")] or [0])
        ),
        "noise": noise(rows, limits),
        "strata": strata(rows, limits),
        "peers": of_peers(rows, limits),
        "machine": machine,
        "rows": worst_first(rows),
    }


def merged(old, new):
    """The grids of two records: rows of one seed come together, those of the newer record count; where seeds
    differ only the newer ones stay."""
    found = dict(old or {})
    for grid, part in new.items():
        before = found.get(grid)
        rows = {r["index"]: r for r in before["rows"]} if before and before["seed"] == part["seed"] else {}
        rows.update((r["index"], r) for r in part["rows"])
        found[grid] = summarise(grid, part["seed"], list(rows.values()), part["machine"])
    return found


# ---- printing ----


def micro(seconds):
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def number(x):
    return "-" if x is None else f"{x:.2f}"


def line(title, found):
    return (
        f"  {title:44} {found['problems']:5} {found['behind_3_percent']:6} "
        f"{found['behind_25_percent']:6} {number(found['geometric_mean']):>6}"
    )


def text(grid, found, worst=10):
    """The table of one grid."""
    lines = [
        f"{grid}, seed {found['seed'][:12]}, on {found['machine'].get('name', '?')}, "
        f"{found['machine'].get('threads', '?')} threads; a peer is faster by:",
        f"  {'':44} {'of':>5} {'>3 %':>6} {'>25 %':>6} {'mean':>6}",
        line("all", found),
    ]
    if found["noise"]:
        lines.append(
            line("ours beside itself", found["noise"])
            + f"  half of them within {found['noise']['median_percent']} %, "
            f"nine tenths within {found['noise']['ninth_decile_percent']} %"
        )
    for heading, groups in [("peer", found["peers"]), *found["strata"].items()]:
        lines += [line(f"{heading}: {value}", some) for value, some in groups.items()]
    if found["others_share"] > 0.05:
        lines.append(
            f"  other programs took {found['others_share']:.0%} of the processors: believe no CPU time"
        )
    if found["errors"]:
        lines.append(f"  errors of ours: {found['errors']}")
    rows = [row for row in found["rows"] if row["ratio"] is None or row["ratio"] < 1][:worst]
    lines += ["  the worst: ratio, ours and the best peer in us"] * bool(rows)
    for row in rows:
        lines.append(
            f"    {number(row['ratio']):>6} {micro(row['seconds']):>10} {micro(row['peer_seconds']):>10} "
            f"{row['peer'] or '-':16} {row['index']:4} {row['problem']}; "
            f"{row.get('error') or row.get('variant')}"
        )
    return "\n".join(lines)
