"""A matrix as a picture of its blocks, for notebooks."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

MOST_CELLS = 96  # a side; larger grids are shown by the share of blocks in each cell
SIDE = 240


def coverage(pattern: Any, transposed: bool) -> np.ndarray:
    """Share of the blocks that are stored, on a grid of at most MOST_CELLS a side."""
    (rows, cols), most = pattern.grid, MOST_CELLS
    if rows == 0 or cols == 0:
        return np.zeros((0, 0))
    height, width = min(rows, most), min(cols, most)
    row_of = np.arange(rows) * height // rows
    col_of = np.arange(cols) * width // cols
    block_rows = np.repeat(np.arange(rows), np.diff(pattern.row_ptr))
    counts = np.zeros((height, width))
    np.add.at(counts, (row_of[block_rows], col_of[pattern.col_idx]), 1)
    full = np.outer(np.bincount(row_of), np.bincount(col_of))
    share = counts / full
    return share.T if transposed else share


def shrink(keep: np.ndarray) -> np.ndarray:
    """Share of True on a grid of at most MOST_CELLS a side."""
    rows, cols = keep.shape
    if rows == 0 or cols == 0:
        return np.zeros((0, 0))
    height, width = min(rows, MOST_CELLS), min(cols, MOST_CELLS)
    row_at, col_at = np.arange(height) * rows // height, np.arange(width) * cols // width
    counts = np.add.reduceat(np.add.reduceat(keep, row_at, 0, np.int64), col_at, 1)
    return counts / np.outer(np.diff([*row_at, rows]), np.diff([*col_at, cols]))


def _runs(row: np.ndarray) -> list[tuple[int, int, float]]:
    """Neighbours of one share that is not 0: where they begin, how many, which share."""
    ends = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
    return [(a, b - a, float(row[a])) for a, b in zip(ends, ends[1:]) if row[a] > 0]


def grids_svg(shares: list[np.ndarray]) -> str:
    """Grids side by side, darker where the share is larger."""
    rows, cols = shares[0].shape
    if rows == 0 or cols == 0:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIDE}" height="24"><text x="4" '
            'y="16">empty</text></svg>'
        )
    cell = SIDE / max(rows, cols)
    width, height, gap = cols * cell, rows * cell, SIDE / 16
    all_wide = len(shares) * (width + gap) - gap
    parts = []
    for number, share in enumerate(shares):
        tiles = "".join(
            (
                f'<rect x="{j * cell:.2f}" y="{i * cell:.2f}" width="{count * cell:.2f}" height="{cell:.2f}" '
                f'fill-opacity="{0.15 + 0.85 * value:.2f}"/>'
            )
            for i, row in enumerate(share)
            for j, count, value in _runs(row)
        )
        ground = (
            f'<rect width="{width:.2f}" height="{height:.2f}" fill="#f4f5f7" stroke="#c4c9d1"/><g '
            f'fill="#2463a8">{tiles}</g>'
        )
        parts.append(
            f'<g transform="translate({number * (width + gap):.2f},0)">{ground}</g>' if number else ground
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{all_wide:.0f}" height="{height:.0f}" viewBox="0 0 '
        f'{all_wide:.2f} {height:.2f}">'
        f"{''.join(parts)}</svg>"
    )


def matrix_svg(pattern: Any, transposed: bool = False) -> str:
    return grids_svg([coverage(pattern, transposed)])


def labelled(label: str, svg: str) -> str:
    return f"<div><div>{html.escape(label)}</div>{svg}</div>"


def matrix_picture(matrix: Any) -> str:
    return labelled(repr(matrix), matrix_svg(matrix.to_static()._pattern, matrix.is_transposed))
