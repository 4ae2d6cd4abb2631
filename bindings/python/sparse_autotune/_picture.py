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


def matrix_svg(pattern: Any, transposed: bool = False) -> str:
    share = coverage(pattern, transposed)
    rows, cols = share.shape
    if rows == 0:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIDE}" height="24"><text x="4" y="16">empty</text></svg>'
    cell = SIDE / max(rows, cols)
    width, height = cols * cell, rows * cell
    tiles = "".join(
        f'<rect x="{j * cell:.2f}" y="{i * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}" fill-opacity="{0.15 + 0.85 * share[i, j]:.2f}"/>'
        for i, j in np.argwhere(share > 0)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.2f} {height:.2f}">'
        f'<rect width="{width:.2f}" height="{height:.2f}" fill="#f4f5f7" stroke="#c4c9d1"/><g fill="#2463a8">{tiles}</g></svg>'
    )


def matrix_picture(matrix: Any) -> str:
    return f"<div><div>{html.escape(repr(matrix))}</div>{matrix_svg(matrix._pattern, matrix.is_transposed)}</div>"
