"""The roofline of each block size, from a record of bench/gpu_check: tables and a picture for
docs/internals/hopper.md."""

import math

import counters
import floor
import problems

BLOCKS = (16, 32, 64, 128)
NAMES = {"operations": "arithmetic", "hbm": "memory", "l2": "L2"}


class Point:
    """One row of the record, with its floors as bench/gpu/floor.py has them."""

    def __init__(self, row, problem, ceilings):
        self.row, self.problem = row, problem
        self.seconds, self.cold = row["seconds"], row.get("cold_seconds")
        self.flops, total = row["problem"]["flops"], row["problem"]["bytes"]
        self.l2_bytes = floor.l2_bytes(problem, row["variant"]) or total
        self.floors = floor.floors(problem, self.flops, total, self.l2_bytes, ceilings, False)
        self.number = 0  # in the picture; 0: not there

    @property
    def limit(self):
        return max(self.floors, key=self.floors.get)

    @property
    def intensity(self):
        return self.flops / self.l2_bytes

    @property
    def rate(self):
        return self.flops / self.seconds


def points_of(record):
    """By block size."""
    known = {p.name: p for p in problems.all_problems()}
    found = {block: [] for block in BLOCKS}
    for row in record["rows"]:
        problem = known.get(row["problem"]["name"])
        if (
            problem
            and problem.block in found
            and problem.measure == "warm"
            and row["variant"]
            and row["seconds"]
        ):
            found[problem.block].append(Point(row, problem, record["machine"]["ceilings"]))
    for points in found.values():
        for number, point in enumerate((p for p in points if is_drawn(p)), 1):
            point.number = number
    return found


def is_drawn(point):
    p = point.problem
    return p.dtype == "f16" and p.n >= 16 and p.op == "matmul" and not p.transpose and p.layout == "row,row"


# ---- the tables ----


def micro(seconds):
    return f"{seconds * 1e6:.1f}" if seconds else "-"


def ratio(value):
    return f"{value:.2f}" if value else "-"


def row_of(*cells):
    return "| " + " | ".join(cells) + " |"


def table(points):
    lines = [
        (
            "| | problem | variant | us | floor | limit | x floor | arithmetic | memory | L2 | cold us | x "
            "dense | x Triton |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for p in points:
        least, ratios = max(p.floors.values()), p.row["ratios"]
        by_race = "" if p.row["timed_by"] == "graph" else "*"
        cells = [
            str(p.number or ""),
            p.problem.name,
            f"`{p.row['variant'].split('_', 2)[2]}`",
            micro(p.seconds) + by_race,
            micro(least),
            NAMES[p.limit],
            f"{p.seconds / least:.2f}",
            *(micro(p.floors[name]) for name in NAMES),
            micro(p.cold),
            ratio(ratios.get("dense_cublas")),
            ratio(ratios.get("triton_bsr")),
        ]
        lines.append(row_of(*cells))
    return lines


def measured(record, found):
    c, machine = record["machine"]["ceilings"], record["machine"]
    lines = [
        f"{machine['name'].split(' (')[0]}, commit {record['commit'][:7]}, `{record['command']}`, "
        f"{record['date'][:10]}. Ceilings of that run: f16 {c['f16'] / 1e12:.0f} TFLOPS, bf16 "
        f"{c['bf16'] / 1e12:.0f}, TF32 {c['tf32'] / 1e12:.0f}, L2 {c['l2'] / 1e12:.2f} TB/s, memory "
        f"{c['memory'] / 1e12:.2f} TB/s."
    ]
    if any(p.row["timed_by"] != "graph" for points in found.values() for p in points):
        lines += ["Times with a `*` are the race's and not from a graph."]
    if not any(p.cold for points in found.values() for p in points):
        lines += ["This record has no cold times."]
    for block, points in found.items():
        lines += ["", f"### Block {block}", "", *table(points)]
    counted = record["checks"].get("counters")
    if counted:
        lines += [
            "",
            "### Counters",
            "",
            (
                "What ncu counts in the products that miss a target, and in dense cuBLAS products of random "
                "operands: of three launches, after 25 others, the median."
            ),
            "",
            *counters.table(counted),
        ]
    return lines


# ---- the picture: a panel for each block, both axes logarithmic ----

# of a panel; of what is left of and above the axes, and below them
WIDTH, HEIGHT, LEFT, TOP, ROOM = (460, 400, 56, 34, 44)
X, Y = (8, 256), (30e12, 1000e12)  # operations a byte; operations a second


def place(x, y):
    across = math.log(x / X[0]) / math.log(X[1] / X[0])
    up = math.log(y / Y[0]) / math.log(Y[1] / Y[0])
    return LEFT + across * (WIDTH - LEFT - 16), TOP + (1 - up) * (HEIGHT - TOP - ROOM)


def line(start, end, style):
    return f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" {style}/>'


def text(at, words, style=""):
    return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" {style}>{words}</text>'


def axes():
    grey, found = 'stroke="#ddd"', []
    for x in (8, 16, 32, 64, 128, 256):
        found += [
            line(place(x, Y[0]), place(x, Y[1]), grey),
            text((place(x, Y[0])[0], HEIGHT - ROOM + 14), x, 'text-anchor="middle"'),
        ]
    for y in (30, 50, 100, 200, 300, 500, 1000):
        at = place(X[0], y * 1e12)
        found += [line(at, place(X[1], y * 1e12), grey), text((LEFT - 6, at[1] + 4), y, 'text-anchor="end"')]
    found.append(
        text(
            (LEFT + (WIDTH - LEFT) / 2, HEIGHT - 12),
            "operations a byte read through L2",
            'text-anchor="middle"',
        )
    )
    found.append(
        text((14, HEIGHT / 2), "TFLOPS", f'text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})"')
    )
    return found


def roof(ceilings):
    peak, rate = ceilings["f16"], ceilings["l2"]
    corner, thick = peak / rate, 'stroke="#555" stroke-width="2"'
    low = max(X[0], Y[0] / rate)
    return [
        line(place(low, low * rate), place(corner, peak), thick),
        line(place(corner, peak), place(X[1], peak), thick),
        text(
            (place(X[1], peak)[0] - 4, place(X[1], peak)[1] - 6),
            f"tensor cores {peak / 1e12:.0f}",
            'text-anchor="end"',
        ),
        text(place(24, 24 * rate * 1.15), f"L2 {rate / 1e12:.1f} TB/s", 'text-anchor="end"'),
    ]


def mark(point):
    """The measured rate, and above it what the floor would give."""
    x = min(max(point.intensity, X[0]), X[1])
    at, top = place(x, point.rate), place(x, point.flops / max(point.floors.values()))
    title = (
        f"<title>{point.problem.name}: {micro(point.seconds)} us, floor {micro(max(point.floors.values()))} "
        "us</title>"
    )
    return [
        line(at, top, 'stroke="#c33" stroke-dasharray="2,2"'),
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="#c33">{title}</circle>',
    ]


def labels(points):
    """Numbers beside the points, moved down where one would cover another."""
    found, taken = [], []
    for p in sorted(points, key=lambda p: -p.rate):
        at = place(min(max(p.intensity, X[0]), X[1]), p.rate)
        y = at[1]
        while any(abs(at[0] - x) < 24 and abs(y - other) < 12 for x, other in taken):
            y += 1
        taken.append((at[0], y))
        found += [
            line(at, (at[0] + 18, y), 'stroke="#c33" stroke-width="0.5"'),
            text((at[0] + 20, y + 4), p.number, 'fill="#c33"'),
        ]
    return found


def picture(record, found):
    panels = []
    for i, (block, points) in enumerate(found.items()):
        drawn = [p for p in points if p.number]
        inside = (
            axes() + roof(record["machine"]["ceilings"]) + [s for p in drawn for s in mark(p)] + labels(drawn)
        )
        inside.append(text((LEFT, 22), f"block {block}", 'font-size="15" font-weight="bold"'))
        panels.append(
            f'<g transform="translate({i % 2 * WIDTH} {i // 2 * HEIGHT})">' + "\n".join(inside) + "</g>"
        )
    size = f'width="{2 * WIDTH}" height="{2 * HEIGHT}" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT}"'
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" '
                'fill="#333">'
            ),
            '<rect width="100%" height="100%" fill="#fff"/>',
            *panels,
            "</svg>",
            "",
        ]
    )
