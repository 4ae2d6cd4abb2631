"""The dense weight that a sparse layer stands for, to be read like a parameter.

Models read more of a layer than its result: T5 asks for `wo.weight.dtype`, Mamba multiplies by
`dt_proj.weight`. `DenseWeight` is a tensor that has dtype, device and shape, but no memory. Whatever else is
asked of it gets the dense matrix, made of the stored blocks in that moment, with gradients to them. It can be
multiplied by a number in place, which RWKV does, and the blocks follow. All other writes are refused, also
those to views of the dense matrix (`DensePart`), which would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import private

_PARTS = (
    "dtype",
    "device",
    "shape",
    "ndim",
    "layout",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_sparse",
    "is_nested",
)
_PARTS += ("is_quantized", "is_leaf", "grad", "grad_fn", "itemsize", "nbytes")
_METHODS = ("size", "dim", "ndimension", "numel", "nelement", "element_size", "stride", "is_contiguous")
_METHODS += ("is_floating_point", "is_complex", "is_inference", "get_device", "__len__")

# What is answered without the dense matrix.
_OF_ITSELF = {getattr(Tensor, name).__get__ for name in _PARTS} | {getattr(Tensor, name) for name in _METHODS}
_OF_ITSELF |= {torch.is_floating_point, torch.is_complex, torch.numel}


def dense(values: Tensor, row_ptr: Tensor, col_idx: Tensor, shape: tuple[int, int]) -> Tensor:
    """The dense matrix of these blocks, by operators that torch.compile, meta tensors and gradients know."""
    (rows, cols), (br, bc) = shape, values.shape[1:]
    gr, gc = -(-rows // br), -(-cols // bc)
    index = torch.arange(col_idx.shape[0], device=row_ptr.device, dtype=row_ptr.dtype)
    block_rows = torch.searchsorted(row_ptr, index, right=True) - 1
    tiles = values.new_zeros((gr * gc, br, bc)).index_put((block_rows * gc + col_idx,), values)
    return tiles.view(gr, gc, br, bc).permute(0, 2, 1, 3).reshape(gr * br, gc * bc)[:rows, :cols].contiguous()


_AUGMENTED = {
    f"__i{name}__" for name in "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
}

_SCALINGS = ("mul_", "div_", "__imul__", "__idiv__", "__itruediv__")


def _refuse_writes(function: Any, words: dict) -> None:
    name = getattr(function, "__name__", "").partition(".")[0]
    in_place = name.endswith("_") and not name.endswith("__")
    setter = name in ("__set__", "__setitem__", "__delete__")
    if in_place or setter or name in _AUGMENTED or isinstance(words.get("out"), (DenseWeight, DensePart)):
        raise RuntimeError(
            f"{name}: the weight of a SparseLinear is made of its stored blocks and cannot be written to; "
            "expected a write to its values"
        )


def _with_dense(x: Any) -> Any:
    """The arguments of a call with the dense matrix for each `DenseWeight` among them."""
    if isinstance(x, DenseWeight):
        return x._dense()
    if isinstance(x, dict):
        return {name: _with_dense(part) for name, part in x.items()}
    return type(x)([_with_dense(part) for part in x]) if type(x) in (list, tuple) else x


def _plain(x: Any) -> Any:
    """The same with plain tensors for each `DensePart`."""
    if isinstance(x, DensePart):
        return x.as_subclass(Tensor)
    if isinstance(x, dict):
        return {name: _plain(part) for name, part in x.items()}
    return type(x)([_plain(part) for part in x]) if type(x) in (list, tuple) else x


def _guarded(result: Any, memory: Tensor) -> Any:
    """The result with a `DensePart` for each view of `memory`."""
    if type(result) in (list, tuple):
        return type(result)([_guarded(part, memory) for part in result])
    if type(result) is not Tensor or result.layout is not torch.strided or result.numel() == 0:
        return result
    same = result.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    return result.as_subclass(DensePart) if same else result


class DensePart(Tensor):
    """A view of the dense matrix: a plain tensor, but that it cannot be written to."""

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, arguments: tuple = (), words: dict | None = None
    ) -> Any:
        words = words or {}
        if isinstance(words.get("out"), DensePart) or (arguments and isinstance(arguments[0], DensePart)):
            _refuse_writes(function, words)
        result = function(*_plain(arguments), **_plain(words))
        part = next((x for x in arguments if isinstance(x, DensePart)), None)
        return result if part is None else _guarded(result, part)


class DenseWeight(Tensor):
    """The weight of a `SparseLinear` as a dense tensor; see the module."""

    _layer: Any
    _detached: bool

    @classmethod
    def of(cls, layer: Any, detached: bool = False) -> DenseWeight:
        values, shape = layer.values, (layer.out_features, layer.in_features)
        made = private.memoryless(cls, shape, dtype=values.dtype, device=values.device)
        made._layer, made._detached = layer, detached
        # transformers marks parameters that a checkpoint had, and draws others anew
        made._is_hf_initialized = getattr(values, "_is_hf_initialized", False)
        return made

    def _dense(self) -> Tensor:
        layer = self._layer
        if layer._shard is not None:
            raise RuntimeError(
                "weight is that of a layer that is cut, and each rank has a part of it: "
                "sparse_autotune.distributed.plain_state_dict gathers the whole"
            )
        values = layer.values.detach() if self._detached else layer.values
        return dense(values, layer.row_ptr, layer.col_idx, (layer.out_features, layer.in_features))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DenseWeight({self._layer})"

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, arguments: tuple = (), words: dict | None = None
    ) -> Any:
        words = words or {}
        if function == Tensor.requires_grad.__get__:
            return arguments[0]._layer.values.requires_grad and not arguments[0]._detached
        if function in _OF_ITSELF:
            return super().__torch_function__(function, types, arguments, words)
        if function == Tensor.data.__get__ or function in (Tensor.detach, torch.detach):
            return cls.of(arguments[0]._layer, True)
        if getattr(function, "__name__", "") in _SCALINGS and len(arguments) == 2 and not words:
            weight, factor = arguments
            if isinstance(factor, (int, float)):  # zeros beside the blocks stay zeros
                function(weight._layer.values, factor)
                return weight
        _refuse_writes(function, words)
        made = _with_dense(arguments)
        result = function(*made, **_with_dense(words))
        memory = next((new for new, old in zip(made, arguments) if isinstance(old, DenseWeight)), None)
        return result if memory is None else _guarded(result, memory)

    @classmethod
    def __torch_dispatch__(
        cls, function: Callable, types: Any, arguments: tuple = (), words: dict | None = None
    ) -> Any:
        """For what comes past __torch_function__."""
        _refuse_writes(function, words or {})
        with torch.no_grad():
            arguments, words = _with_dense(arguments), _with_dense(words or {})
        return function(*arguments, **words)


def weight_of(layer: Any) -> Tensor:
    """Inside torch.compile the dense matrix itself: the compiler drops it where only its dtype is read. So
    too where torch cannot make a tensor without memory: writes to it are lost there."""
    if torch.compiler.is_compiling() or private.memoryless is None:
        shape = (layer.out_features, layer.in_features)
        return dense(layer.values, layer.row_ptr, layer.col_idx, shape)
    return DenseWeight.of(layer)
