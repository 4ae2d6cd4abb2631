#!/usr/bin/env python3
"""Writes what the pages under docs/ say of a record of bench/gpu_check: tables between two marks, and
docs/internals/roofline.svg.

usage: bench/gpu/pages.py [RECORD]       by default bench/results/h200.json
       bench/gpu/pages.py --check        fails where the pages are not what that record says
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True

import roofline
from roofline import row_of

BEGIN, END = "<!-- measured: begin; bench/gpu/pages.py writes this -->", "<!-- measured: end -->"


def products(record):
    """The f16 squares at density 0.125: ours beside everybody's."""
    rows = {row["problem"]["name"]: row for row in record["rows"]}
    lines = [
        (
            "On an H200, f16, 4096x4096x4096, density 0.125, back to back from CUDA graphs, from "
            f"`bench/results/h200.json` (commit {record['commit'][:7]});"
        ),
        "PyTorch's Triton kernel was tuned by search in the same run. Times in us.",
        "",
        row_of(
            "block",
            "best of ours",
            "",
            "best of the portable ones",
            "Triton",
            "cuSPARSE Blocked-ELL",
            "cuSPARSE BSR",
            "dense cuBLAS",
        ),
        "|---" * 8 + "|",
    ]
    for block in roofline.BLOCKS:
        row = rows[f"f16 4096^3 block {block}"]
        rivals = row["rival_seconds"]
        portable = rivals["triton_bsr"] / row["ratios"]["triton_bsr_portable"]
        times = [
            roofline.micro(t)
            for t in (
                row["seconds"],
                portable,
                *(rivals[name] for name in ("triton_bsr", "cusparse_ell", "cusparse_bsr", "dense_cublas")),
            )
        ]
        lines.append(row_of(str(block), times[0], f"`{family_of(row['variant'])}`", *times[1:]))
    return lines


def family_of(variant):
    return "matmul_" + next((word for word in ("union", "pair") if variant.endswith(word)), "wgmma")


def attention(record):
    lines = [
        row_of(
            "batch, heads, length, head size",
            "us",
            "TFLOPS on kept pairs",
            "x cuDNN",
            "x FlashAttention-2",
            "x FlexAttention",
        ),
        "|---" * 6 + "|",
    ]
    for row in record["rows"]:
        if row["problem"]["op"].startswith("attention"):
            ratios = row["ratios"]
            lines.append(
                row_of(
                    row["problem"]["name"].removeprefix("attention "),
                    roofline.micro(row["seconds"]),
                    f"{ratios['tflops']:.0f}",
                    *(roofline.ratio(ratios.get(name)) for name in ("cudnn", "sdpa_flash", "flex_attention")),
                )
            )
    return lines


def page_with(path, lines):
    """The page, with these lines between its two marks."""
    page = path.read_text()
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    return before + "\n\n" + "\n".join(lines) + "\n\n" + after


def main():
    words = [w for w in sys.argv[1:] if w != "--check"]
    record = json.loads(Path(words[0] if words else ROOT / "bench" / "results" / "h200.json").read_text())
    docs, points = ROOT / "docs", roofline.points_of(record)
    pages = {
        "internals/hopper.md": roofline.measured(record, points),
        "internals/kernels-cuda.md": products(record),
        "guide/attention.md": attention(record),
    }
    files = {docs / name: page_with(docs / name, lines) for name, lines in pages.items()}
    files[docs / "internals" / "roofline.svg"] = roofline.picture(record, points)
    if "--check" not in sys.argv:
        for path, content in files.items():
            path.write_text(content)
        return 0
    stale = [path.name for path, content in files.items() if not path.exists() or path.read_text() != content]
    if stale:
        print(f"{', '.join(stale)}: not what the record says; run bench/gpu/pages.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
