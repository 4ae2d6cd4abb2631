"""Masks as tensors, for the operators: row_ptr, col_idx and the offsets of sequences in one tensor."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._mask import AttentionMask
from .._matrix import make_pattern
from .._pattern import Pattern
from . import modes, private
from .patterns import Known, Seen

_masks = Known()


def _key(index: Tensor, shape: tuple) -> tuple:
    return private.storage_id(index), index.storage_offset(), index.shape[0], shape


def pattern_of(index: Tensor, shape: tuple) -> Pattern:
    """The pattern of a mask's tensor; (rows, columns, block rows, block columns, stored blocks, sequences) is
    its shape."""
    found = _masks.get(_key(index, shape), (index,))
    if found is not None:
        return found
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("mask is not known yet, and a CUDA graph is being captured: run this once before")
    if len(shape) != 6 or shape[2] < 1 or shape[3] < 1:
        raise ValueError(
            f"mask_shape is {shape}; expected rows, columns, block rows, block columns, stored blocks, "
            "sequences"
        )
    rows, cols, br, bc, stored, sequences = shape
    words = index.detach().cpu().numpy().astype(np.int64)
    sizes = [-(-rows // br) + 1, stored, *((sequences + 1, sequences + 1) if sequences else ())]
    if words.ndim != 1 or len(words) != sum(sizes):
        raise ValueError(f"mask has shape {tuple(words.shape)}; expected ({sum(sizes)},)")
    row_ptr, col_idx, *offsets = (np.array(x) for x in np.split(words, np.cumsum(sizes)[:-1]))
    pattern = make_pattern(row_ptr, col_idx, (rows, cols), (br, bc))
    if offsets:
        pattern = Pattern(row_ptr, col_idx, (rows, cols), (br, bc), "cpu", tuple(offsets))
    _masks.add(_key(index, shape), (index,), pattern, Seen((index,), (words,)))
    return pattern


def copy_index(pattern: Pattern, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(
            np.concatenate([pattern.row_ptr, pattern.col_idx, *pattern.offsets]).astype(np.int64),
            device=device,
        )


def place_of(device: torch.device) -> int:
    """The key of a device among a mask's tensors."""
    return device.index if device.type == "cuda" else -1


def index_of(mask: AttentionMask, device: torch.device) -> Tensor:
    """A mask's tensor on a device, made once. It stays. Another thread makes a GPU's."""
    key = place_of(device)
    if key not in mask._tensors:
        made = modes.lasting(copy_index, mask._pattern, device, aside=key >= 0)
        private.mark_static(made)
        _masks.add(_key(made, mask._index_shape), (made,), mask._pattern, Seen((made,), None))
        mask._tensors[key] = made
    return mask._tensors[key]


def adopt(mask: AttentionMask) -> None:
    """Makes the tensors that torch.compile will look for."""
    index_of(mask, torch.device("cpu"))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        index_of(mask, torch.device("cuda", torch.cuda.current_device()))
