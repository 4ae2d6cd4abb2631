#!/usr/bin/env python3
"""Draws docs/speed.svg, the README's picture, from the records of an H200 in bench/results/: products by
block size, attention, and random problems beside their best peer.

usage: scripts/draw_readme.py             writes it
       scripts/draw_readme.py --check     fails where it is not what the records say
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURE = ROOT / "bench/results", ROOT / "docs/speed.svg"
WIDTH, HEIGHT = 960, 640

# A colour for light and one for dark, each readable there
COLOURS = {
    "paper": ("#ffffff", "#15181e"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "grid": ("#e3e6ea", "#2f353d"),
    "ours": ("#1d4ed8", "#7aa8ff"),
    "first": ("#b45309", "#f0a14a"),
    "second": ("#0f766e", "#4fc7b8"),
    "third": ("#9d174d", "#f08bb4"),
}
BLOCKS = (16, 32, 64, 128)
RIVALS = (  # of products: name in the record, name here, class
    ("triton_bsr", "PyTorch's Triton kernel", "first"),
    ("cusparse_ell", "cuSPARSE Blocked-ELL", "second"),
    ("cusparse_bsr", "cuSPARSE BSR", "third"),
)
ATTENTION = (  # name in the record, name here
    ("1, 16, 4096, 128", "4096 tokens"),
    ("1, 16, 4096, 128, causal", "4096, causal"),
    ("2, 16, 8192, 128, causal", "8192, causal, batch 2"),
    ("1, 16, 4096, 256, causal", "4096, causal, head size 256"),
    ("1, 16, 16384, 128, window 1024", "16384, window 1024"),
    ("1, 16, 8192, 128, 128-blocks, density 0.26", "8192, 26 % of 128-blocks"),
    ("1, 16, 8192, 128, 64-blocks, density 0.14", "8192, 14 % of 64-blocks"),
    ("32, 32 over 8, 1 query, 8192 keys, 128", "decoding, 8192 keys"),
    ("backward 1, 16, 4096, 128", "gradients, 4096"),
    ("backward 1, 16, 4096, 128, 128-blocks, density 0.26", "gradients, 26 % of 128-blocks"),
)
PEERS = (
    ("cudnn", "cuDNN", "first"),
    ("sdpa_flash", "FlashAttention-2", "second"),
    ("flex_attention", "FlexAttention", "third"),
)


def text(x, y, words, name="ink", anchor="start", size=12, more=""):
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{name}" font-size="{size}"{more}>{words}</text>'


def line(x1, y1, x2, y2, name="grid", width=1.0):
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} class="{name} line" stroke-width="{width}"/>'


def path(points, name, width=2.2):
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" class="{name} line" fill="none" stroke-width="{width}"/>'


def dot(x, y, name, radius=4.0):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{name}"/>'


def heading(x, y, title, under):
    return [
        text(x, y, title, size=16, more=' font-weight="600"'),
        text(x, y + 19, under, "soft"),
    ]


# ---- products by block size ----


def products(record):
    rows = {row["problem"]["name"]: row for row in record["rows"]}
    left, right, top, bottom, most = 48, 330, 84, 330, 6.0

    def across(block):
        return left + 20 + (math.log2(block) - 4) / 3 * (right - left - 40)

    def up(times):
        return bottom - times / most * (bottom - top)

    found = heading(24, 34, "Products by block size", "f16, 4096 x 4096 x 4096, 12.5 % of the blocks stored")
    for times in range(7):
        found += [
            line(left, up(times), right, up(times)),
            text(left - 8, up(times) + 4, f"{times}x", "soft", "end"),
        ]
    found += [line(left, up(1), right, up(1), "soft", 1.4)]
    found += [text(across(block), bottom + 20, block, "soft", "middle") for block in BLOCKS]
    found += [text((left + right) / 2, bottom + 38, "rows and columns of a block", "soft", "middle")]

    def curve(values, name, words, width):
        points = [(across(block), up(value)) for block, value in zip(BLOCKS, values)]
        return [
            path(points, name, width),
            *(dot(x, y, name) for x, y in points),
            text(right + 2, points[-1][1] + 4, f"{words} {values[-1]:.1f}x", name),
        ]

    ratios = [rows[f"f16 4096^3 block {block}"]["ratios"] for block in BLOCKS]
    for rival, words, name in RIVALS:
        found += curve([r["dense_cublas"] / r[rival] for r in ratios], name, words, 1.8)
    found += curve([r["dense_cublas"] for r in ratios], "ours", "sparse_autotune", 2.8)
    found += [text(right + 2, up(1) + 4, "dense cuBLAS", "soft")]
    return found


# ---- attention ----


def attention(record):
    rows = {row["problem"]["name"].removeprefix("attention "): row for row in record["rows"]}
    left, right, top, step, least, most = 732, 936, 96, 23.4, 0.5, 2.75

    def across(times):
        return left + (times - least) / (most - least) * (right - left)

    bottom = top + step * (len(ATTENTION) - 1) + 14
    found = [text(536, 34, "Attention", size=16, more=' font-weight="600"')]
    found.append(text(640, 34, "f16, head size 128 but where it says otherwise", "soft"))
    found.append(text(536, 58, "times as fast as", "soft"))
    x = 644
    for _, words, name in PEERS:
        found += [dot(x, 54, name), text(x + 9, 58, words)]
        x += 34 + 6.6 * len(words)
    for times in (0.5, 1.0, 1.5, 2.0, 2.5):
        name, width = ("soft", 1.4) if times == 1 else ("grid", 1.0)
        found += [
            line(across(times), top - 12, across(times), bottom, name, width),
            text(across(times), bottom + 17, f"{times:g}x", "soft", "middle"),
        ]
    for i, (known, words) in enumerate(ATTENTION):
        ratios, y = rows[known]["ratios"], top + i * step
        found.append(text(left - 10, y + 4, words, "ink", "end"))
        values = [ratios[peer] for peer, _, _ in PEERS if peer in ratios]
        found.append(line(across(min([1.0, *values])), y, across(max([1.0, *values])), y, "grid", 3))
        found += [dot(across(ratios[peer]), y, name, 5) for peer, _, name in PEERS if peer in ratios]
    return found


# ---- random problems ----


def random_problems(grids):
    left, right, top, bottom, least, most = 48, 700, 450, 590, 0.25, 16

    def up(times):
        clipped = min(max(times, least), most)
        return bottom - math.log(clipped / least) / math.log(most / least) * (bottom - top)

    found = heading(
        24,
        404,
        "Random problems, each beside its best peer",
        "sorted; above 1x sparse_autotune is faster; peers: dense cuBLAS, cuSPARSE, PyTorch, cuDNN",
    )
    for times in (0.25, 0.5, 1, 2, 4, 8, 16):
        name, width = ("soft", 1.4) if times == 1 else ("grid", 1.0)
        found += [
            line(left, up(times), right, up(times), name, width),
            text(left - 8, up(times) + 4, f"{times:g}x", "soft", "end"),
        ]
    places = ((470, "ours", 2), (540, "first", 3))
    for (y, name, least_us), (words, grid) in zip(places, grids):
        ratios = sorted(row["ratio"] for row in grid["rows"] if row.get("ratio"))
        points = [(left + i / (len(ratios) - 1) * (right - left), up(r)) for i, r in enumerate(ratios)]
        behind = f"a peer is over 3 % and {least_us} us faster: {grid['behind_3_percent']}"
        found += [
            path(points, name, 2.6),
            text(right + 14, y, f"{grid['problems']} {words}", name, more=' font-weight="600"'),
            text(right + 14, y + 17, f"{grid['geometric_mean']:.2f}x in the geometric mean", "soft"),
            text(right + 14, y + 34, behind, "soft", size=11),
        ]
    return found


def picture():
    def record(name):
        return json.loads((RESULTS / f"{name}.json").read_text())

    measured = record("h200")
    grids = [
        ("products", record("grid-products-h200")["grids"]["gpu_products"]),
        ("attention problems", record("grid-attention-h200")["grids"]["gpu_attention"]),
    ]

    def rules(i):
        return " ".join(
            f".{name} {{ fill: {both[i]} }} .{name}.line {{ fill: none; stroke: {both[i]} }}"
            for name, both in COLOURS.items()
        )

    words = (
        "NVIDIA H200. Products: times as fast as cuBLAS on a matrix that is dense. Records: bench/results/"
    )
    names = "h200.json, grid-products-h200.json, grid-attention-h200.json"
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">',
            f"<title>sparse_autotune on an NVIDIA H200, from {names}</title>",
            f"<style>{rules(0)} @media (prefers-color-scheme: dark) {{ {rules(1)} }}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>',
            *products(measured),
            *attention(measured),
            *random_problems(grids),
            text(24, HEIGHT - 14, words + names, "soft", size=11),
            "</svg>",
            "",
        ]
    )


def main():
    drawn = picture()
    if "--check" not in sys.argv:
        PICTURE.write_text(drawn)
        return 0
    if PICTURE.read_text() != drawn:
        print(f"{PICTURE}: not what the records say; run scripts/draw_readme.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
