"""AttentionMask: which keys a query sees, as blocks of the score matrix, causal, a window, and packed
sequences together."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from . import _ops, _picture
from ._arrays import host, torch_module
from ._indices import host_indices
from ._matrix import BsrMatrix, check_block, make_pattern
from ._pattern import Pattern
from ._sparse import as_bsr, is_sparse, uncompiled

early: weakref.WeakSet = weakref.WeakSet()  # masks that were made before torch was there
_MOST_DRAWN = 1 << 24  # elements of a mask that is drawn pair by pair; larger ones by their blocks


def whole(x: Any, name: str, least: int = 1) -> int:
    """A whole number of at least `least`, or an exception that names it."""
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        raise TypeError(f"{name} is {x!r}; expected a whole number")
    x = int(x.__index__())
    if x < least:
        raise ValueError(f"{name} is {x}; expected at least {least}")
    return x


def flag(x: Any, name: str) -> bool:
    """A bool, Python's or NumPy's, or an exception that names it."""
    if type(x) is bool:
        return x
    if not isinstance(x, np.bool_):
        raise TypeError(f"{name} is {x!r}; expected True or False")
    return bool(x)


def _check_offsets(x: Any, name: str, last: int) -> np.ndarray:
    offsets = host_indices(x, name).astype(np.int64)
    if len(offsets) < 2 or offsets[0] != 0:
        raise ValueError(f"{name} is {_short(offsets)}; expected 0 first and at least one sequence")
    if (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} is {_short(offsets)}; expected offsets that never decrease")
    if offsets[-1] != last:
        raise ValueError(
            f"{name} ends with {offsets[-1]}; expected {last}, the length of all sequences together"
        )
    return offsets


def _short(x: np.ndarray) -> str:
    return f"[{', '.join(map(str, x[:6].tolist()))}{', ...' if len(x) > 6 else ''}]"


def _two(shape: Any) -> tuple[int, int]:
    try:
        queries, keys = shape
    except (TypeError, ValueError):
        raise TypeError(f"shape is {shape!r}; expected two whole numbers") from None
    return whole(queries, "shape[0]", 0), whole(keys, "shape[1]", 0)


class AttentionMask:
    """Which keys each query sees: stored blocks of the score matrix, less what `causal`, `window` and
    sequences take away.

    `row_ptr` and `col_idx` are those of a BSR matrix of `shape` (queries, keys). With `heads` every head has
    a mask of its own: its block rows stand after those of the head before. `causal` keeps keys up to the
    query's diagonal position (the last query's is the last key), `window` those at a distance below it.
    `q_offsets` and `kv_offsets` begin packed sequences, each of which sees itself alone. A mask never
    changes, and is validated and analysed once: keep it.

    >>> import sparse_autotune as sa
    >>> sa.AttentionMask([0, 1, 2], [0, 1], (4, 4), (2, 2), causal=True).to_dense().astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 1, 1]])
    """

    def __init__(
        self,
        row_ptr: Any,
        col_idx: Any,
        shape: tuple[int, int],
        block: Any,
        *,
        heads: int | None = None,
        causal: bool = False,
        window: int | None = None,
        q_offsets: Any = None,
        kv_offsets: Any = None,
    ):
        (queries, keys), block = _two(shape), check_block(block)
        heads = None if heads is None else whole(heads, "heads")
        rows = queries if heads is None else heads * -(-queries // block[0]) * block[0]
        pattern = make_pattern(row_ptr, col_idx, (rows, keys), block)
        if q_offsets is not None:
            q = _check_offsets(q_offsets, "q_offsets", queries)
            kv = q if kv_offsets is None else _check_offsets(kv_offsets, "kv_offsets", keys)
            if kv_offsets is None and queries != keys:
                raise ValueError(
                    f"kv_offsets is None beside {queries} queries and {keys} keys; expected offsets, for the "
                    "lengths differ"
                )
            if len(q) != len(kv):
                raise ValueError(f"kv_offsets has {len(kv)} entries and q_offsets {len(q)}; expected as many")
            pattern = Pattern(
                np.array(pattern.row_ptr),
                np.array(pattern.col_idx),
                pattern.shape,
                block,
                "cpu",
                (q, np.array(kv)),
            )
        elif kv_offsets is not None:
            raise ValueError("kv_offsets is given without q_offsets; expected both")
        self._set(pattern, (queries, keys), heads, causal, window)

    def _set(
        self,
        pattern: Pattern,
        shape: tuple[int, int],
        heads: int | None,
        causal: bool,
        window: int | None,
    ) -> None:
        self._pattern, self._shape, self._heads, self._causal = pattern, shape, heads, flag(causal, "causal")
        self._window = 0 if window is None else whole(window, "window")
        offsets = pattern.offsets
        self._index_shape = (
            *pattern.shape,
            *pattern.block,
            pattern.stored_blocks,
            len(offsets[0]) - 1 if offsets else 0,
        )
        self._tensors: dict[int, Any] = {}  # torch's: all indices as one tensor, by device; -1 is the CPU
        if torch_module() is None:
            early.add(self)
        else:
            from ._torch import masks

            masks.adopt(self)

    @classmethod
    def _of(
        cls,
        pattern: Pattern,
        shape: tuple[int, int],
        heads: int | None = None,
        causal: bool = False,
        window: int | None = None,
    ) -> AttentionMask:
        mask = cls.__new__(cls)
        mask._set(pattern, shape, heads, causal, window)
        return mask

    def __deepcopy__(self, _memo: dict) -> AttentionMask:
        return self

    def __reduce__(self) -> tuple:
        return AttentionMask._of, (
            self._pattern,
            self._shape,
            self._heads,
            self._causal,
            self._window or None,
        )

    # ---- made from others ----

    @classmethod
    def from_blocks(
        cls,
        stored: Any,
        shape: tuple[int, int],
        block: Any,
        *,
        heads: int | None = None,
        **words: Any,
    ) -> AttentionMask:
        """From booleans, one a block: (block rows, block columns), or (heads, block rows, block columns).

        >>> import sparse_autotune as sa
        >>> sa.AttentionMask.from_blocks([[True, False], [True, True]], (128, 128), 64)
        AttentionMask(128x128, block 64x64, 3 of 4 blocks)
        """
        stored, shape, (br, bc) = _booleans(stored, "stored"), _two(shape), check_block(block)
        if heads is not None:
            raise TypeError("heads is given; expected it as the first dimension of stored")
        grid = -(-shape[0] // br), -(-shape[1] // bc)
        if stored.ndim not in (2, 3) or stored.shape[-2:] != grid:
            raise ValueError(
                f"stored has shape {stored.shape}; expected {grid}, with or without heads before it"
            )
        heads = stored.shape[0] if stored.ndim == 3 else None
        flat = stored.reshape(math.prod(stored.shape[:-1]), grid[1])
        row_ptr = np.concatenate(([0], np.cumsum(flat.sum(1)))).astype(np.int64)
        return cls(row_ptr, np.nonzero(flat)[1].astype(np.int64), shape, (br, bc), heads=heads, **words)

    @classmethod
    def from_dense(
        cls,
        keep: Any,
        block: Any = 64,
        *,
        causal: bool = False,
        window: int | None = None,
    ) -> AttentionMask:
        """From booleans, one a pair: (queries, keys) or (heads, queries, keys), True where a key is kept.
        What causal and window keep of each block must be all of it or nothing, for a block is stored or not.

        >>> import numpy as np, sparse_autotune as sa
        >>> sa.AttentionMask.from_dense(np.tril(np.ones((64, 64), bool)), block=16, causal=True)
        AttentionMask(64x64, block 16x16, 10 of 16 blocks, causal)
        """
        keep, (br, bc) = _booleans(keep, "keep"), check_block(block)
        if keep.ndim not in (2, 3):
            raise ValueError(
                f"keep has {keep.ndim} dimensions; expected (queries, keys) or (heads, queries, keys)"
            )
        shape = keep.shape[-2:]
        wide = np.pad(keep, [(0, 0)] * (keep.ndim - 2) + [(0, -shape[0] % br), (0, -shape[1] % bc)])
        stored = wide.reshape(*wide.shape[:-2], wide.shape[-2] // br, br, wide.shape[-1] // bc, bc).any(
            (-3, -1)
        )
        mask = cls.from_blocks(stored, shape, (br, bc), causal=causal, window=window)
        if not np.array_equal(mask.to_dense(), keep):
            raise ValueError(
                f"keep holds blocks of {br}x{bc} that are kept in part; expected whole blocks, less what "
                "causal and window take away"
            )
        return mask

    @classmethod
    def from_bsr(cls, matrix: Any, *, causal: bool = False, window: int | None = None) -> AttentionMask:
        """From the stored blocks of a BsrMatrix, a torch.sparse_bsr or sparse_bsc tensor or a SciPy BSR
        matrix. The values do not matter, but for booleans, which must be True: a block is kept or not."""
        if not is_sparse(matrix):
            raise TypeError(
                f"matrix is a {type(matrix).__name__}; expected a BsrMatrix, a torch.sparse_bsr tensor or a "
                "SciPy BSR matrix"
            )
        blocks = _whole_blocks(matrix, "matrix")
        return cls._of(blocks._own_pattern(), blocks.shape, None, causal, window)

    @classmethod
    def from_block_mask(cls, block_mask: Any) -> AttentionMask:
        """From a BlockMask of FlexAttention. Blocks that it keeps in part must be explained by causal, a
        window or both, which is found out; anything else raises ValueError."""
        from . import _block_mask

        return _block_mask.convert(cls, block_mask)

    # ---- makers ----

    @classmethod
    def window(
        cls,
        queries: int,
        window: int,
        *,
        keys: int | None = None,
        block: Any = 64,
        causal: bool = True,
    ) -> AttentionMask:
        """Each query sees the `window` keys up to its own; without causal also those after it, at a distance
        below `window`.

        >>> import sparse_autotune as sa
        >>> sa.AttentionMask.window(4096, 512)
        AttentionMask(4096x4096, block 64x64, 540 of 4096 blocks, causal, window 512)
        """
        shape, block = _lengths(queries, keys), check_block(block)
        stored = _reach(shape, block, causal, whole(window, "window"))
        return cls.from_blocks(stored, shape, block, causal=causal, window=window)

    @classmethod
    def strided(
        cls,
        queries: int,
        stride: int,
        *,
        local: int = 1,
        keys: int | None = None,
        block: Any = 64,
        causal: bool = True,
    ) -> AttentionMask:
        """Each query sees the `local` nearest blocks of keys, and every `stride`-th block.

        >>> import sparse_autotune as sa
        >>> sa.AttentionMask.strided(1024, 4)
        AttentionMask(1024x1024, block 64x64, 40 of 256 blocks, causal)
        """
        shape, block = _lengths(queries, keys), check_block(block)
        stride, local = whole(stride, "stride"), whole(local, "local")
        at, cols = _diagonal_blocks(shape, block)
        stored = (np.abs(at[:, None] - cols) < local) | (cols % stride == stride - 1)
        return cls.from_blocks(stored & _reach(shape, block, causal, 0), shape, block, causal=causal)

    @classmethod
    def global_window_random(
        cls,
        queries: int,
        *,
        first: int = 1,
        window: int = 3,
        random: int = 2,
        keys: int | None = None,
        block: Any = 64,
        heads: int | None = None,
        causal: bool = False,
        seed: int = 0,
    ) -> AttentionMask:
        """In blocks: every query sees the `first` blocks of keys, and those queries see everything; beside
        that the blocks nearer than `window`, and `random` others, which with `heads` differ from head to
        head.

        >>> import sparse_autotune as sa
        >>> sa.AttentionMask.global_window_random(1024, heads=2)
        AttentionMask(1024x1024, block 64x64, 2 heads, 260 of 512 blocks)
        """
        shape, block = _lengths(queries, keys), check_block(block)
        first, window, random = (
            whole(first, "first", 0),
            whole(window, "window", 0),
            whole(random, "random", 0),
        )
        at, cols = _diagonal_blocks(shape, block)
        near = (np.abs(at[:, None] - cols) < window) | (cols < first) | (np.arange(len(at)) < first)[:, None]
        reach, rng = _reach(shape, block, causal, 0), np.random.default_rng(seed)

        def one() -> np.ndarray:
            free = np.where(reach & ~near, rng.random(near.shape), 2.0)
            order = free.argsort(1).argsort(1)
            return (near & reach) | ((order < random) & (free < 2))

        stored = one() if heads is None else np.stack([one() for _ in range(whole(heads, "heads"))])
        return cls.from_blocks(stored, shape, block, causal=causal)

    @classmethod
    def document(
        cls,
        offsets: Any,
        *,
        kv_offsets: Any = None,
        block: Any = 64,
        causal: bool = False,
        window: int | None = None,
    ) -> AttentionMask:
        """Packed sequences: each sees itself alone. `offsets` begin with 0 and end with the number of tokens.
        The batch is 1.

        >>> import sparse_autotune as sa
        >>> sa.AttentionMask.document([0, 100, 300, 512], causal=True)
        AttentionMask(512x512, block 64x64, 21 of 64 blocks, causal, 3 sequences)
        """
        q, block = host_indices(offsets, "offsets"), check_block(block)
        q = _check_offsets(q, "offsets", int(q[-1]) if len(q) else 0)
        kv = host_indices(offsets if kv_offsets is None else kv_offsets, "kv_offsets")
        kv = _check_offsets(kv, "kv_offsets", int(kv[-1]) if len(kv) else 0)
        if len(kv) != len(q):
            raise ValueError(f"kv_offsets has {len(kv)} entries and offsets {len(q)}; expected as many")
        shape, reach = (int(q[-1]), int(kv[-1])), 0 if window is None else whole(window, "window")
        stored = np.zeros((-(-shape[0] // block[0]), -(-shape[1] // block[1])), bool)
        for q0, q1, k0, k1 in zip(q, q[1:], kv, kv[1:]):
            if q1 > q0 and k1 > k0:
                stored |= _reach(shape, block, causal, reach, (q0, q1, k0, k1))
        return cls.from_blocks(stored, shape, block, causal=causal, window=window, q_offsets=q, kv_offsets=kv)

    # ---- what it is ----

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self._shape

    @property
    def block(self) -> tuple[int, int]:
        return self._pattern.block

    @property
    def heads(self) -> int | None:
        """How many masks there are; None: one for every head."""
        return self._heads

    @property
    def causal(self) -> bool:
        return self._causal

    @property
    def window_size(self) -> int | None:
        return self._window or None

    @property
    def row_ptr(self) -> np.ndarray:
        return self._pattern.row_ptr

    @property
    def col_idx(self) -> np.ndarray:
        return self._pattern.col_idx

    @property
    def offsets(self) -> tuple[np.ndarray, ...]:
        """Offsets of the queries and of the keys of packed sequences; empty where there are none."""
        return self._pattern.offsets

    @property
    def stored_blocks(self) -> int:
        return self._pattern.stored_blocks

    @property
    def density(self) -> float:
        """Stored blocks over all blocks."""
        rows, cols = self._pattern.grid
        return self.stored_blocks / (rows * cols) if rows * cols else 0.0

    def to_dense(self) -> np.ndarray:
        """Booleans, True where a key is kept: (queries, keys), or (heads, queries, keys) where heads have
        masks of their own."""
        keep = dense_mask(
            self.row_ptr,
            self.col_idx,
            self._shape,
            self.block,
            self._heads or 1,
            self._causal,
            self._window,
            self.offsets,
        )
        return keep[0] if self._heads is None else keep

    # ---- shown ----

    def __repr__(self) -> str:
        grid, words = self._pattern.grid, []
        if self._heads is not None:
            words.append(f"{self._heads} heads")
        words.append(f"{self.stored_blocks} of {grid[0] * grid[1]} blocks")
        if self._causal:
            words.append("causal")
        if self._window:
            words.append(f"window {self._window}")
        if self.offsets:
            words.append(f"{len(self.offsets[0]) - 1} sequences")
        return (
            f"AttentionMask({self._shape[0]}x{self._shape[1]}, block {self.block[0]}x{self.block[1]}, "
            f"{', '.join(words)})"
        )

    def picture(self) -> str:
        """An SVG: keys from left to right, queries downwards, darker where more is kept; with many heads the
        first four.

        >>> import sparse_autotune as sa
        >>> sa.AttentionMask.window(256, 64).picture()[:4]
        '<svg'
        """
        return _picture.grids_svg([_picture.shrink(x) for x in self._drawn()])

    def _repr_html_(self) -> str:
        return _picture.labelled(repr(self), self.picture())

    def _drawn(self) -> np.ndarray:
        (m, n), heads = self._shape, min(self._heads or 1, 4)
        if heads * m * n <= _MOST_DRAWN:
            keep = self.to_dense()
            return keep[None] if keep.ndim == 2 else keep[:4]
        return stored_blocks(self.row_ptr, self.col_idx, self._pattern.grid[1]).reshape(
            self._heads or 1, -1, self._pattern.grid[1]
        )[:4]


def _booleans(x: Any, name: str) -> np.ndarray:
    x = host(x, name)
    if x.dtype != bool:
        raise TypeError(f"{name} has dtype {x.dtype}; expected booleans")
    return x


def _lengths(queries: Any, keys: Any) -> tuple[int, int]:
    return whole(queries, "queries"), whole(queries if keys is None else keys, "keys")


def _diagonal_blocks(shape: tuple[int, int], block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """For each block row the block column of its last query's diagonal position; and the block columns."""
    last = np.minimum(np.arange(block[0], shape[0] + block[0], block[0]), shape[0]) - 1 + shape[1] - shape[0]
    return np.maximum(last, 0) // block[1], np.arange(-(-shape[1] // block[1]))


def _reach(
    shape: tuple[int, int],
    block: tuple[int, int],
    causal: bool,
    window: int,
    part: tuple | None = None,
) -> np.ndarray:
    """Blocks in which causal and window keep anything, of all or of one sequence (q0, q1, k0, k1)."""
    q0, q1, k0, k1 = part or (0, shape[0], 0, shape[1])
    rows, cols = np.arange(-(-shape[0] // block[0])), np.arange(-(-shape[1] // block[1]))
    # queries of a block row
    first, last = (np.maximum(rows * block[0], q0), np.minimum((rows + 1) * block[0], q1) - 1)
    left, right = np.maximum(cols * block[1], k0), np.minimum((cols + 1) * block[1], k1) - 1
    shift = k1 - q1  # from a query to its diagonal position
    high = last + shift if causal else np.where(window > 0, last + shift + window - 1, k1)
    low = first + shift - window + 1 if window else np.full(len(rows), k0)
    inside = (first <= last)[:, None] & (left <= right)
    return inside & (left <= high[:, None]) & (right >= low[:, None])


def stored_blocks(row_ptr: np.ndarray, col_idx: np.ndarray, cols: int) -> np.ndarray:
    """Booleans, one a block: (block rows, block columns)."""
    blocks = np.zeros((len(row_ptr) - 1, cols), bool)
    blocks[np.repeat(np.arange(len(row_ptr) - 1), np.diff(row_ptr)), col_idx] = True
    return blocks


def dense_mask(
    row_ptr: np.ndarray,
    col_idx: np.ndarray,
    shape: tuple,
    block: tuple,
    heads: int,
    causal: bool,
    window: int,
    offsets: tuple,
) -> np.ndarray:
    """Booleans, one a pair: (heads, queries, keys)."""
    (m, n), (br, bc) = shape, block
    blocks = stored_blocks(row_ptr, col_idx, -(-n // bc)).reshape(heads, -(-m // br), -(-n // bc))
    return np.repeat(np.repeat(blocks, br, 1), bc, 2)[:, :m, :n] & _kept_pairs(shape, causal, window, offsets)


def _kept_pairs(shape: tuple[int, int], causal: bool, window: int, offsets: tuple) -> np.ndarray:
    """What causal, window and sequences keep: (queries, keys)."""
    m, n = shape
    i, j = np.arange(m)[:, None], np.arange(n)
    if offsets:
        sequence = [np.searchsorted(o, x, "right") - 1 for o, x in zip(offsets, (np.arange(m), np.arange(n)))]
        ends = [o[1:] for o in offsets]
        at = i + (ends[1] - ends[0])[sequence[0]][:, None]
        keep = sequence[0][:, None] == sequence[1]
    else:
        at, keep = i + (n - m), np.ones((m, n), bool)
    if causal:
        keep = keep & (j <= at)
    if window:
        keep = keep & (np.abs(j - at) < window)
    return keep


# ---- anything as a mask ----

_known: dict[int, tuple[Any, AttentionMask]] = {}  # by object: what was made of a BlockMask


@uncompiled
def _whole_blocks(x: Any, name: str) -> BsrMatrix:
    """Stored blocks, each of which is kept as a whole."""
    blocks = as_bsr(x, name, blocks_only=True)
    if (
        not isinstance(x, BsrMatrix)
        and str(x.dtype).endswith("bool")
        and not _all_true(x, blocks._pattern.caches)
    ):
        raise ValueError(
            f"{name} stores booleans that are False; expected True in all of each stored block. "
            "AttentionMask.from_dense takes what causal and a window explain"
        )
    return blocks


def _all_true(x: Any, known: dict) -> bool:
    """Whether all booleans are true. Those of a GPU, which must be waited for, are read again only once torch
    has counted a write."""
    if hasattr(x, "tocsr"):
        return bool(x.data.all())
    from ._torch import private

    version = None if x.is_cpu or x.is_inference() else private.version_of(x)
    if version is None or known.get("all true") != version:
        if not x.values().all():
            return False
        known["all true"] = version
    return True


@uncompiled
def _sparse_as_mask(x: Any, name: str) -> AttentionMask:
    blocks = _whole_blocks(x, name)
    key = ("mask", blocks.is_transposed)
    if key not in blocks._pattern.caches:
        blocks._pattern.caches[key] = AttentionMask.from_bsr(blocks)
    return blocks._pattern.caches[key]


def as_mask(x: Any, name: str = "mask") -> AttentionMask:
    if isinstance(x, AttentionMask):
        return x
    if _ops._compiling():
        raise TypeError(f"{name}: inside torch.compile an AttentionMask is expected, made outside of it")
    if is_sparse(x):
        return _sparse_as_mask(x, name)
    if hasattr(x, "kv_num_blocks") and hasattr(x, "mask_mod"):
        key = id(x)
        found = _known.get(key)
        if found is None or found[0]() is not x:
            found = _known[key] = (
                weakref.ref(x, lambda _: _known.pop(key, None)),
                AttentionMask.from_block_mask(x),
            )
        return found[1]
    hint = "; AttentionMask.from_dense takes booleans" if hasattr(x, "dtype") else ""
    raise TypeError(
        f"{name} is a {type(x).__name__}; expected an AttentionMask, a BsrMatrix or a BlockMask{hint}"
    )
