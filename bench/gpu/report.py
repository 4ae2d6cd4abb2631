"""Rows of bench/gpu_check: ratios, floors, targets, the record and the table."""

import datetime
import json
import os
import statistics
import subprocess

import floor


def rival_name(result):
    """What a library variant of the race is called among the ratios; None for our own kernels."""
    if result["dense"]:
        return "densified"  # spreading the blocks out is part of its time
    if not result["library"]:
        return None
    # <backend>_<op>_<dtype>_<block>_<library and what of it>
    name = result["variant"].replace("_backward", "").split("_", 4)[-1]
    # its two ways with BSR; the faster one counts
    return "cusparse_bsr" if name == "cusparse_bsrmm" else name


class Row:
    # ratios of the table
    columns = (("triton_bsr", "triton"), ("dense_cublas", "dense"), ("cusparse_bsr", "cusparse"))

    def __init__(self, problem, race):
        self.problem, self.race = problem, race
        self.times = {}  # variant -> what bench_gpu measured
        self.rivals = {}  # name -> seconds
        self.details = {}
        self.floors = {}  # what limits -> seconds; back to back, or cold where the row is
        self.cold_floor = None
        self.l2 = {}  # variant -> bytes through L2
        for r in self.results():
            name = rival_name(r)
            if name and r["verdict"] == "ok" and r["seconds"]:
                self.rivals[name] = min(r["seconds"], self.rivals.get(name, 1e9))

    def results(self):
        return self.race["results"] if self.race else []

    def own(self):
        """Our own kernels that gave a right result, fastest first by the best time known."""
        found = [
            r
            for r in self.results()
            if r["verdict"] == "ok" and r["seconds"] and not r["library"] and not r["dense"]
        ]
        return sorted(found, key=lambda r: self.seconds_of(r))

    def seconds_of(self, result):
        by_graph = self.times.get(result["variant"], {}).get("seconds")
        return by_graph if by_graph and self.problem.measure == "warm" else result["seconds"]

    def contenders(self, most=4):
        """Whom bench_gpu times: the first few of ours, and where asked for every library, even one that the
        race left out as too slow."""
        libraries = [
            r["variant"]
            for r in self.results()
            if self.problem.libraries and rival_name(r) and r["verdict"] in ("ok", "skipped")
        ]
        portable = [r["variant"] for r in self.own() if is_portable(r)][:2]
        return list(dict.fromkeys([r["variant"] for r in self.own()[:most]] + portable)) + libraries

    def take_times(self, lines):
        """`lines` of bench_gpu for this row; a rival's graph time replaces its time in the race."""
        for line in lines:
            self.times[line["variant"]] = line
        for r in self.results():
            name, line = rival_name(r), self.times.get(r["variant"])
            if name and line and line.get("seconds"):
                before = self.rivals.get(name) if self.details.get(name) == "graph" else None
                self.rivals[name] = min(line["seconds"], before or 1e9)
                self.details[name] = "graph"
                if r["verdict"] == "skipped":
                    # as too slow; `check` has verified it
                    self.details["not raced"] = self.details.get("not raced", []) + [r["variant"]]

    @property
    def best(self):
        """What a tuned call runs: whoever won the race, or where a library did the first of ours, whatever
        was measured afterwards."""
        own = self.own()
        return (
            next(
                (r for r in own if r["variant"] == self.race.get("best")),
                min(own, key=lambda r: r["seconds"]),
            )
            if own
            else None
        )

    @property
    def fastest(self):
        """By the best time known: where that is another one than the race's, the race was wrong by so
        much."""
        return self.own()[0] if self.own() else None

    @property
    def portable(self):
        """The best that runs on any GPU from sm_80 on."""
        return min((r for r in self.own() if is_portable(r)), key=self.seconds_of, default=None)

    @property
    def seconds(self):
        return self.seconds_of(self.best) if self.best else None

    @property
    def flops(self):
        return self.race["problem"]["flops"] if self.race else 0

    @property
    def bytes(self):
        return self.race["problem"]["bytes"] if self.race else 0

    def set_floor(self, ceilings):
        """By what this GPU was seen to reach in this run, whoever reached it, and with the tile of our
        best."""
        p, best = self.problem, self.best["variant"] if self.best else ""
        if best not in self.l2:
            self.l2[best] = floor.l2_bytes(p, best)

        def floors(cold):
            return floor.floors(p, self.flops, self.bytes, self.l2[best], ceilings, cold)

        self.floors, self.cold_floor = floors(p.measure == "cold"), max(floors(True).values())

    @property
    def floor(self):
        return max(self.floors.values(), default=None)

    @property
    def limit(self):
        """What the floor is made of."""
        return max(self.floors, key=self.floors.get, default=None)

    @property
    def cold_seconds(self):
        if self.problem.measure == "cold" or not self.best:
            return self.seconds
        return self.times.get(self.best["variant"], {}).get("cold_seconds")

    def ratios(self, rows, ceilings):
        """Above 1 we are faster. `hbm` is a share of the measured rate, `equal_rows` of another row's."""
        if not self.seconds:
            return {}
        found = {name: s / self.seconds for name, s in self.rivals.items() if s}
        like = rows.get(self.problem.like)
        if self.problem.tf32 and "cusparse_bsr" not in found and like and "cusparse_bsr" in like.rivals:
            found["cusparse_bsr"] = like.rivals["cusparse_bsr"] / self.seconds
        if "triton_bsr" in found and self.portable:
            found["triton_bsr_portable"] = self.rivals["triton_bsr"] / self.seconds_of(self.portable)
        if ceilings and "57344" in self.problem.name:
            found["hbm"] = self.bytes / self.seconds / ceilings["memory"]
        for name in ("equal_rows", "row_major"):
            if name in {**self.problem.must, **self.problem.aim} and like and like.seconds:
                found[name] = (self.flops / self.seconds) / (like.flops / like.seconds)
        return found

    def problem_record(self):
        p = self.problem
        problem = (
            dict(self.race["problem"])
            if self.race
            else {"op": p.op, "m": p.m, "n": p.n, "k": p.k, "block": [p.block] * 2, "dtype": p.dtype}
        )
        problem.update(name=p.name, rows=p.rows, layout=p.layout, tf32=p.tf32, measure=p.measure)
        if p.overlap >= 0:
            problem["overlap"] = p.overlap
        return problem

    def record(self, rows, ceilings):
        p = self.problem
        problem = self.problem_record()
        best, ratios = self.best, self.ratios(rows, ceilings)
        timed = self.times.get(best["variant"], {}) if best else {}
        row = {
            "problem": problem,
            "variant": best["variant"] if best else None,
            "seconds": self.seconds,
            "floor_seconds": self.floor,
            "over_floor": over(self.seconds, self.floor),
            "floor": self.floor_record(),
            "cold_seconds": self.cold_seconds,
            "cold_floor_seconds": self.cold_floor,
            "cold_over_floor": over(self.cold_seconds, self.cold_floor),
            "portable": self.portable["variant"] if self.portable else None,
            "timed_by": "graph" if p.measure == "warm" and timed.get("graph") else "race",
            "ratios": ratios,
            "rival_seconds": self.rivals,
            "targets": [
                {"ratio": name, "must": least, "aim": p.aim.get(name), "met": met(ratios.get(name), least)}
                for name, least in p.must.items()
            ],
            "aims": [
                {"ratio": name, "aim": least, "met": met(ratios.get(name), least)}
                for name, least in p.aim.items()
            ],
            "winner": self.race["best"] if self.race else None,
            "fastest": {"variant": self.fastest["variant"], "seconds": self.seconds_of(self.fastest)}
            if best
            else None,
        }
        if self.details:
            row["details"] = self.details
        row["results"] = [
            dict(
                {
                    k: r[k]
                    for k in (
                        "variant",
                        "verdict",
                        "seconds",
                        "error",
                        "estimate_seconds",
                        "prepare_seconds",
                        "workspace_bytes",
                    )
                },
                message=r["message"],
                graph_seconds=self.times.get(r["variant"], {}).get("seconds"),
            )
            for r in self.results()
            if r["verdict"] != "skipped" or r["variant"] in self.times
        ]
        return row

    def floor_record(self):
        best = self.best["variant"] if self.best else ""
        tile = floor.tile_of(best)
        return {
            "limit": self.limit,
            "seconds": self.floors,
            "l2_bytes": self.l2.get(best),
            "tile": list(tile) if tile else None,
        }


def over(seconds, least):
    return seconds / least if seconds and least else None


def is_portable(result):
    return "_sm90_" not in result["variant"]


def met(value, least):
    return None if value is None else value >= least


# ---- the table ----


def print_table(rows, ceilings):
    counts = {True: 0, False: 0, None: 0}
    for columns in dict.fromkeys(row.columns for row in rows.values()):
        print_rows([row for row in rows.values() if row.columns == columns], columns, rows, ceilings, counts)
    print(
        f"targets: {counts[True]} met, {counts[False]} missed, {counts[None]} not measured "
        "(a ratio above 1 means that we are faster)"
    )


def print_rows(some, columns, rows, ceilings, counts):
    """Those that have the same rivals; `rows` are all, to compare with."""
    lines = [
        [
            "problem",
            "best of ours",
            "us",
            "cold us",
            "TFLOPS",
            "x floor",
            "limit",
            *(title for _, title in columns),
            "target",
            "",
        ]
    ]
    for row in some:
        ratios, p = row.ratios(rows, ceilings), row.problem
        target, verdict = [], []
        for name, least in p.must.items():
            value = ratios.get(name)
            counts[met(value, least)] += 1
            target.append(f"{name} {number(value)} of {least:.3g}")
            verdict.append({True: "met", False: "MISSED", None: "not measured"}[met(value, least)])
        seconds = row.seconds
        lines.append(
            [
                p.name,
                row.best["variant"] if row.best else "nothing right",
                micro(seconds),
                micro(row.cold_seconds),
                f"{row.flops / seconds * 1e-12:.1f}" if seconds else "-",
                number(over(seconds, row.floor)),
                row.limit or "-",
                *(number(ratios.get(name)) for name, _ in columns),
                ", ".join(target) or "-",
                ", ".join(verdict),
            ]
        )
    print_columns(lines)


def micro(seconds):
    return f"{seconds * 1e6:.1f}" if seconds else "-"


def number(value):
    return "-" if value is None else f"{value:.2f}"


def print_columns(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


# ---- what was chosen ----


def choice_row(name, chosen, lines):
    """Of one problem, from bench_gpu's lines; None where the choice was not timed. Ratios are medians over
    rounds."""
    timed = {line["variant"]: line for line in lines if line.get("seconds")}
    if chosen not in timed:
        return None
    best = min(timed, key=lambda v: timed[v]["seconds"])
    estimated = next((v for v in timed if timed[v]["estimated"]), None)

    def ratio(variant):
        return (
            statistics.median(x / y for x, y in zip(timed[variant]["times"], timed[best]["times"]))
            if variant
            else None
        )

    return {
        "problem": name,
        "best": best,
        "seconds": timed[best]["seconds"],
        "chosen": chosen,
        "chosen_ratio": ratio(chosen),
        "estimated": estimated,
        "estimated_ratio": ratio(estimated),
        "candidates": len(lines),
        "timed": len(timed),
    }


def choice_record(rows, least):
    chosen = [r["chosen_ratio"] for r in rows]
    estimated = [r["estimated_ratio"] for r in rows if r["estimated_ratio"]]
    counts = [
        sum(x <= 1.03 for x in chosen),
        sum(x <= 1.06 for x in chosen),
        sum(x <= 1.25 for x in estimated),
    ]
    figures = {
        name: {"count": count, "must": must, "met": count >= must}
        for (name, must), count in zip(least.items(), counts)
    }
    return {"problems": len(rows), "figures": figures, "rows": rows}


# ---- the record ----


def commit(root):
    """A copy of the tree without its history is given its commit."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]

    def git(*words):
        try:
            return subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    return git("rev-parse", "HEAD") + (
        "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
    )


def added(old, new):
    """The old record with what the new one measured. Who measured it, when and how is said beside it."""
    source = {name: new[name] for name in ("date", "commit", "command")}
    measured = {
        name: what
        for name, what in new["checks"].items()
        if name not in ("left_out", "failures", "seconds", "section_seconds")
    }
    checks = {**old["checks"], **measured}
    checks["added"] = [
        a for a in checks.get("added", []) if a["sections"] != list(new["checks"].get("section_seconds", {}))
    ]
    checks["added"].append(
        dict(
            source,
            sections=list(new["checks"].get("section_seconds", {})),
            seconds=new["checks"]["seconds"],
            left_out=new["checks"]["left_out"],
            failures=new["checks"]["failures"],
        )
    )
    again = tuple(f"{section}:" for section in new["checks"].get("section_seconds", {}))
    # of parts that ran again
    checks["failures"] = [what for what in checks.get("failures", []) if not what.startswith(again)]
    rows = {row["problem"]["name"]: row for row in old["rows"] + new["rows"]}
    # a grid that was added to has the old problems already
    grids = {**old.get("grids", {}), **new.get("grids", {})}
    return dict(old, rows=list(rows.values()), checks=checks, **({"grids": grids} if grids else {}))


def write(path, root, command, machine, rows, checks, onto=None, grids=None):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = {
        "version": 1,
        "date": now,
        "commit": commit(root),
        "command": command,
        "machine": machine,
        "rows": rows,
        "checks": checks,
        **({"grids": grids} if grids else {}),
    }
    if onto:
        record = added(json.loads(onto.read_text()), record)
    met_or_not = [t["met"] for row in record["rows"] for t in row.get("targets", ())]
    if met_or_not:
        record["checks"]["targets"] = {
            "met": met_or_not.count(True),
            "missed": met_or_not.count(False),
            "not_measured": met_or_not.count(None),
        }
    save(path, record)


def save(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)
