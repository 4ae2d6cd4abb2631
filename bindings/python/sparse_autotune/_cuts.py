"""How a block-sparse matrix is cut into one part a rank: plain arithmetic on indices, without torch.

A cut says which block rows, or block columns, each rank has. Stored blocks keep one order everywhere, the one
of a matrix in one piece; a rank's own are some of these.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np


class Cut:
    """Which block rows of a matrix, or block columns, each of `parts` ranks has.

    `parts` are their numbers, one tuple a rank, and each number stands in one of them. Ranks have as many as
    `torch.chunk` would give them.

    >>> from sparse_autotune._cuts import Cut
    >>> Cut.plain(5, 2)
    Cut(parts=((0, 1, 2), (3, 4)))
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Sequence[int]]):
        self.parts = tuple(tuple(sorted(int(i) for i in part)) for part in parts)
        numbers = sorted(i for part in self.parts for i in part)
        if not self.parts or numbers != list(range(len(numbers))):
            raise ValueError(f"parts is {parts!r}; expected each number from 0 on in one part")

    @classmethod
    def plain(cls, blocks: int, parts: int) -> Cut:
        """Neighbours stay together, and every rank but the last ones has as many as the others."""
        each = max(-(-blocks // parts), 1)
        return cls([range(min(i * each, blocks), min((i + 1) * each, blocks)) for i in range(parts)])

    @classmethod
    def balanced(cls, weights: Sequence[int], parts: int) -> Cut:
        """The heaviest goes first, to the rank that has least and has room. Ties go to the lower number, so
        that every rank computes the same. Where that is no better, neighbours stay together."""
        plain = cls.plain(len(weights), parts)
        room = [len(part) for part in plain.parts]
        found: list[list[int]] = [[] for _ in room]
        heap = [(0, i) for i, size in enumerate(room) if size]
        for at in sorted(range(len(weights)), key=lambda i: (-int(weights[i]), i)):
            load, part = heapq.heappop(heap)
            found[part].append(at)
            if len(found[part]) < room[part]:
                heapq.heappush(heap, (load + int(weights[at]), part))
        made = cls(found)
        return made if made._heaviest(weights) < plain._heaviest(weights) else plain

    def _heaviest(self, weights: Sequence[int]) -> int:
        return max(sum(int(weights[i]) for i in part) for part in self.parts)

    @property
    def blocks(self) -> int:
        return sum(map(len, self.parts))

    def __len__(self) -> int:
        return len(self.parts)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Cut) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Cut(parts={self.parts})"


class Layout:
    """A pattern that is cut by its block rows (`by_rows`), or by its block columns.

    - ``orders``: of each part, its stored blocks by their numbers in the whole matrix, in its own order.
    - ``width``: as many blocks as the largest part has; every rank stores so many.
    - ``features``: the rows, or columns, of the matrix, part after part; ``sizes``: how many each part has.
    - ``exact``: the parts, one after the other, are the matrix as it is in one piece, without padding.
    - ``even``: the features are in their own order, and cut as `torch.chunk` would.
    """

    def __init__(
        self,
        row_ptr: np.ndarray,
        col_idx: np.ndarray,
        shape: tuple[int, int],
        block: tuple[int, int],
        by_rows: bool,
        cut: Cut,
    ):
        self.row_ptr, self.col_idx = np.array(row_ptr, np.int32), np.array(col_idx, np.int32)
        self.shape, self.block, self.by_rows, self.cut = tuple(shape), tuple(block), by_rows, cut
        side, length = self.block[0 if by_rows else 1], self.shape[0 if by_rows else 1]
        if cut.blocks != -(-length // side):
            what = "rows" if by_rows else "columns"
            raise ValueError(f"cut has {cut.blocks} block {what}; expected {-(-length // side)}")
        owner = np.empty(cut.blocks, np.int64)
        for part, numbers in enumerate(cut.parts):
            owner[list(numbers)] = part
        rows = np.repeat(np.arange(len(self.row_ptr) - 1), np.diff(self.row_ptr))
        part_of = owner[rows if by_rows else self.col_idx] if len(rows) else np.empty(0, np.int64)
        by_part = np.argsort(part_of, kind="stable")
        counts = np.bincount(part_of, minlength=len(cut))
        self.orders = np.split(by_part, np.cumsum(counts)[:-1])
        self.width = int(max(counts.max(initial=0), 1))
        spans = [[np.arange(i * side, min((i + 1) * side, length)) for i in numbers] for numbers in cut.parts]
        self.features = np.concatenate([np.empty(0, np.int64), *(s for part in spans for s in part)])
        self.sizes = [sum(map(len, part)) for part in spans]
        whole = np.array_equal(self.features, np.arange(length))
        each = -(-length // len(cut))
        chunks = [max(min(each, length - i * each), 0) for i in range(len(cut))]
        self.even = whole and self.sizes == chunks and length % len(cut) == 0
        self.exact = (counts == self.width).all() and np.array_equal(by_part, np.arange(len(by_part)))

    def part(self, rank: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
        """Row pointers, columns and shape of one part."""
        numbers, order = np.array(self.cut.parts[rank], np.int64), self.orders[rank]
        rows = np.repeat(np.arange(len(self.row_ptr) - 1), np.diff(self.row_ptr))[order]
        local = np.zeros(max(self.cut.blocks, 1), np.int64)
        local[numbers] = np.arange(len(numbers))
        if self.by_rows:
            rows, columns, shape = local[rows], self.col_idx[order], (self.sizes[rank], self.shape[1])
        else:
            columns, shape = local[self.col_idx[order]], (self.shape[0], self.sizes[rank])
        count = -(-shape[0] // self.block[0])
        row_ptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count)[:count])))
        return row_ptr.astype(np.int32), columns.astype(np.int32), shape

    def features_of(self, rank: int) -> np.ndarray:
        begin = sum(self.sizes[:rank])
        return self.features[begin : begin + self.sizes[rank]]

    def stored(self, rank: int) -> np.ndarray:
        """The number in the whole matrix of each block that a rank stores; -1: padding."""
        return np.concatenate((self.orders[rank], np.full(self.width - len(self.orders[rank]), -1)))

    def numbers(self) -> list[int]:
        """What distinguishes this layout from others, as four numbers."""
        digest = zlib.crc32(np.concatenate([np.append(o, -1) for o in self.orders]).astype("<i8").tobytes())
        return [int(self.by_rows), len(self.cut), self.width, digest]


def runs(stored: np.ndarray) -> list[tuple[int, int, int]]:
    """Neighbours in both orders: (first place, first number, how many), without padding."""
    places = np.flatnonzero(stored >= 0)
    if not len(places):
        return []
    numbers = stored[places]
    breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(places) != 1)) + 1
    begins, ends = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(places)]))
    return [(int(places[b]), int(numbers[b]), int(e - b)) for b, e in zip(begins, ends)]


def block_weights(
    row_ptr: np.ndarray, col_idx: np.ndarray, grid: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """How many blocks each block row stores, and each block column."""
    return np.diff(np.asarray(row_ptr)), np.bincount(np.asarray(col_idx), minlength=grid[1])
