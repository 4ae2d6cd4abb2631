"""FlexAttention's BlockMask as an AttentionMask."""

from __future__ import annotations

from typing import Any

import numpy as np

_CHUNK = 1 << 22  # pairs that are looked at together


def _blocks(count: Any, index: Any, cols: int) -> np.ndarray:
    """Booleans (heads, block rows, block columns) from (1, heads, rows) counts and (1, heads, rows, ...)
    columns."""
    count, index = count[0].cpu().numpy(), index[0].cpu().numpy()
    stored = np.zeros((*count.shape, cols), bool)
    h, r, t = np.nonzero(np.arange(index.shape[-1]) < count[..., None])
    stored[h, r, index[h, r, t]] = True
    return stored


def _pairs(
    at: np.ndarray,
    block: tuple[int, int],
    shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of the blocks `at`, (head, row, column) each, that are inside the matrix."""
    h, r, c = (x[:, None, None] for x in at.T)
    q = r * block[0] + np.arange(block[0])[:, None] + 0 * c
    k = c * block[1] + np.arange(block[1]) + 0 * r
    h, q, k = np.broadcast_arrays(h, q, k)
    inside = (q < shape[0]) & (k < shape[1])
    return h[inside], q[inside], k[inside]


def convert(cls: Any, x: Any) -> Any:
    import torch

    if not hasattr(x, "kv_num_blocks"):
        raise TypeError(
            f"block_mask is a {type(x).__name__}; expected a BlockMask of torch.nn.attention.flex_attention"
        )
    if x.kv_num_blocks.shape[0] != 1:
        raise ValueError(
            f"block_mask has a batch of {x.kv_num_blocks.shape[0]}; expected 1, the same mask for all"
        )
    block = tuple(int(b) for b in x.BLOCK_SIZE)
    shape = tuple(int(n) for n in x.seq_lengths)
    cols = -(-shape[1] // block[1])
    partial = _blocks(x.kv_num_blocks, x.kv_indices, cols)
    full = (
        _blocks(x.full_kv_num_blocks, x.full_kv_indices, cols)
        if x.full_kv_num_blocks is not None
        else np.zeros_like(partial)
    )
    device = x.kv_num_blocks.device
    mod = torch.vmap(x.mask_mod, in_dims=(None, 0, 0, 0))

    def kept(h: np.ndarray, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        words = [torch.tensor(i, device=device) for i in (h, q, k)]
        return mod(torch.zeros((), dtype=torch.int64, device=device), *words).expand(len(h)).cpu().numpy()

    stored = partial | full
    causal, window = _explain(np.argwhere(partial), np.argwhere(full), block, shape, kept)
    words = {"causal": causal, "window": window or None}
    return cls.from_blocks(stored if stored.shape[0] > 1 else stored[0], shape, block, **words)


def _explain(
    partial: np.ndarray,
    full: np.ndarray,
    block: tuple,
    shape: tuple,
    kept: Any,
) -> tuple[bool, int]:
    """Causal and window that keep exactly what the blocks keep; ValueError where there are none."""
    step, shift = max(1, _CHUNK // (block[0] * block[1])), shape[1] - shape[0]
    # distances k - (where q stands) that are kept, and those that are not
    most, least, holes = (-(2**62), 2**62, [])
    if len(full):
        q, k = full[:, 1] * block[0], full[:, 2] * block[1]
        most = int((np.minimum(k + block[1], shape[1]) - 1 - q).max()) - shift
        least = int((k - np.minimum(q + block[0], shape[0]) + 1).min()) - shift
    for i in range(0, len(partial), step):
        h, q, k = _pairs(partial[i : i + step], block, shape)
        distance, keep = k - q - shift, kept(h, q, k)
        if keep.any():
            most, least = max(most, int(distance[keep].max())), min(least, int(distance[keep].min()))
        if not keep.all():
            holes.append(np.unique(distance[~keep]))
    if not holes:
        return False, 0
    out = np.unique(np.concatenate(holes))
    causal = most <= 0 and bool((out > 0).any())
    beyond = out[out <= 0] if causal else out
    window = int(np.abs(beyond).min()) if len(beyond) else 0  # the nearest that is not kept
    reaches = max(most, -least) < window or not window
    if not reaches or (len(beyond) and window == 0):
        raise ValueError(
            "block_mask keeps blocks in part, and neither causal nor a window says which: expected whole "
            "blocks, causal, a window or both"
        )
    return causal, window
