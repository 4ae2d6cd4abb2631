"""Which blocks to keep, chosen by their scores where the scores are. Nothing comes to the host, nothing
waits, and all shapes are known before: these may be compiled, and captured into a CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._matrix import check_block


def _check_tensor(x: Any, name: str, dimensions: int) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor")
    if x.dim() < dimensions:
        raise ValueError(f"{name} has {x.dim()} dimensions; expected at least {dimensions}")


def choose_blocks(
    scores: Tensor,
    top_k: int,
    *,
    diagonal: bool = True,
    dtype: torch.dtype = torch.int32,
) -> tuple[Tensor, Tensor]:
    """The `top_k` blocks of each row with the highest scores, as ``row_ptr`` and ``col_idx``, for
    `BsrMatrix.dynamic`.

    `scores` is (..., block rows, block columns); of several such matrices the rows follow each other. Every
    row keeps `top_k` blocks, so the shapes do not depend on the scores; with `diagonal` block i is among
    those of row i, where there is one. NaN counts as the highest score there is. It is torch's operators
    alone, on the device of the scores: nothing comes to the host, nothing waits.

    >>> import torch, sparse_autotune as sa
    >>> row_ptr, col_idx = sa.choose_blocks(torch.tensor([[0.1, 0.5, 0.9], [0.7, 0.2, 0.3]]), 2)
    >>> row_ptr, col_idx
    (tensor([0, 2, 4], dtype=torch.int32), tensor([0, 2, 0, 1], dtype=torch.int32))
    """
    _check_tensor(scores, "scores", 2)
    cols = scores.shape[-1]
    if not isinstance(top_k, int) or isinstance(top_k, bool):
        raise TypeError(f"top_k is {top_k!r}; expected a whole number")
    if not 1 <= top_k <= cols:
        raise ValueError(f"top_k is {top_k}; expected 1 to {cols}, the block columns")
    if dtype not in (torch.int32, torch.int64):
        raise TypeError(f"dtype is {dtype}; expected torch.int32 or torch.int64")
    rows = scores.shape[:-1].numel()
    if rows * top_k > torch.iinfo(dtype).max:
        raise ValueError(
            f"dtype is {dtype}, which {rows} rows of {top_k} blocks are too many for; expected int64"
        )
    keys = scores.detach()
    keys = keys if keys.dtype == torch.float64 else keys.float()
    keys = keys.nan_to_num(nan=torch.finfo(keys.dtype).max)  # all finite, so that nothing equals what is sure
    if diagonal:
        keys.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    chosen = keys.topk(top_k, sorted=False).indices.sort().values
    row_ptr = torch.arange(0, rows * top_k + 1, top_k, dtype=dtype, device=scores.device)
    return row_ptr, chosen.flatten().to(dtype)


def block_scores(q: Tensor, k: Tensor, block: Any) -> Tensor:
    """Scores for `choose_blocks`: the products of the means of q and k over each block, (..., block rows,
    block columns), in float32 (float64 of float64).

    q is (..., queries, size) and k (..., keys, size); the last block of either may be short. Where q has
    more heads than k, each head of k serves as many, as in `attention`.

    >>> import torch, sparse_autotune as sa
    >>> sa.block_scores(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[1.0], [2.0]]), block=(2, 1))
    tensor([[ 2.,  4.],
            [ 5., 10.]])
    """
    _check_tensor(q, "q", 2)
    _check_tensor(k, "k", 2)
    rows, cols = check_block(block)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q has a size of {q.shape[-1]} and k of {k.shape[-1]}; expected one")
    left, right = _means(q, rows), _means(k, cols)
    if left.dim() > 2 and right.dim() > 2 and left.shape[-3] != right.shape[-3]:
        heads, of_k = left.shape[-3], right.shape[-3]
        if of_k == 0 or heads % of_k:
            raise ValueError(f"q has {heads} heads; expected a multiple of the {of_k} of k")
        right = right.repeat_interleave(heads // of_k, dim=-3)
    return left @ right.mT


def _means(x: Tensor, side: int) -> Tensor:
    """Of every `side` rows, the last few too: (..., blocks, size)."""
    x = x.detach()
    x = x if x.dtype == torch.float64 else x.float()
    length = x.shape[-2]
    blocks = -(-length // side)
    sums = pad(x, (0, 0, 0, blocks * side - length)).unflatten(-2, (blocks, side)).sum(-2)
    counts = length - torch.arange(0, blocks * side, side, device=x.device)
    return sums / counts.clamp(max=side).unsqueeze(-1)
