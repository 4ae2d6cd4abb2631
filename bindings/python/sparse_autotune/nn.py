"""Layers with block-sparse weights, for PyTorch."""

from __future__ import annotations

import contextlib
import copy
import math
import numbers
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from . import _fixed, _products, _sparsify
from ._arrays import refuse_nested
from ._matrix import BsrMatrix, check_block, check_values, make_pattern
from ._moe import MoE
from ._sparsify import SparsifyReport
from ._torch import calls, patterns, private
from ._torch.dense_weight import weight_of
from ._torch.eager import ACTIVATIONS, Product, forward
from ._torch.modes import plain
from ._torch.sharding import alike

__all__ = ["MoE", "SparseLinear", "SparsifyReport", "freeze", "refresh", "sparsify", "unfreeze"]


def _blocks_of(density: float, blocks: int) -> int:
    """As many as this share is, and at least one where it is not 0."""
    return max(round(density * blocks), 1 if density > 0 and blocks else 0)


def random_pattern(
    grid: tuple[int, int],
    density: float,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Row pointers and columns with as many blocks in each block row as in every other, give or take one."""
    rows, cols = grid
    total = _blocks_of(density, rows * cols)
    if not total:
        return tuple(torch.zeros(n, dtype=torch.int32, device="cpu") for n in (rows + 1, 0))
    row_ptr = [total * i // max(rows, 1) for i in range(rows + 1)]
    order = torch.rand(rows, cols, generator=generator, device="cpu").argsort(1)
    taken = [order[i, : row_ptr[i + 1] - row_ptr[i]].sort().values for i in range(rows)]
    col_idx = torch.cat(taken) if taken else torch.zeros(0, dtype=torch.int64, device="cpu")
    return torch.tensor(row_ptr, dtype=torch.int32, device="cpu"), col_idx.to(torch.int32)


def _check_density(density: float) -> float:
    if not isinstance(density, numbers.Real):
        raise TypeError(f"density is {density!r}; expected a share from 0 to 1")
    if not 0 <= density <= 1:
        raise ValueError(f"density is {density!r}; expected a share from 0 to 1")
    return float(density)


def _check_features(size: Any, name: str) -> int:
    try:
        found = operator.index(size)
    except TypeError:
        raise TypeError(f"{name} is {size!r}; expected a whole number") from None
    if found < 0:
        raise ValueError(f"{name} is {size!r}; expected a whole number of at least 0")
    return found


def _keep_grad(made: nn.Parameter | None, origin: Tensor | None) -> None:
    """A frozen parameter stays frozen."""
    if made is not None and origin is not None:
        made.requires_grad_(origin.requires_grad)


class SparseLinear(nn.Module):
    """``activation(x @ W.T + bias)`` with a block-sparse W of shape (out_features, in_features).

    `values` are the stored blocks, a parameter of shape (stored blocks, block rows, block columns); `row_ptr`
    and `col_idx` are buffers and say where they are. The pattern is random with equally filled rows;
    `from_dense` takes it from a layer.

    `load_state_dict` takes another number of blocks too, and then makes `values` a new parameter: an
    optimizer of before has the old one, so make optimizers after loading.

    >>> import torch, sparse_autotune as sa
    >>> layer = sa.SparseLinear(128, 64, block=16, density=0.25)
    >>> layer(torch.ones(3, 128)).shape
    torch.Size([3, 64])
    >>> layer
    SparseLinear(in_features=128, out_features=64, block=(16, 16), stored_blocks=8, density=0.25, bias=True)
    """

    row_ptr: Tensor
    col_idx: Tensor
    _frozen = False
    _trained = False  # whether the values required gradients before
    _fixed: Any = None  # their plans, while they are frozen
    _shard: Any = None  # what this rank has of the layer, where `parallelize_module` has cut it

    def __init__(
        self,
        in_features: int,
        out_features: int,
        block: Any = (64, 64),
        density: float = 0.125,
        bias: bool = True,
        activation: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        in_features, out_features = (
            _check_features(in_features, "in_features"),
            _check_features(out_features, "out_features"),
        )
        if dtype not in (None, torch.float32, torch.float64, torch.float16, torch.bfloat16):
            raise TypeError(f"dtype is {dtype!r}; expected torch.float32, float64, float16 or bfloat16")
        _products.activation_code(activation)
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.block = check_block(block)
        row_ptr, col_idx = random_pattern(self._grid, _check_density(density))
        kind = {"device": device, "dtype": dtype}
        self.values = nn.Parameter(torch.empty(len(col_idx), *self.block, **kind))
        self.bias = nn.Parameter(torch.empty(out_features, **kind)) if bias else None
        self.register_buffer("row_ptr", row_ptr.to(self.values.device))
        self.register_buffer("col_idx", col_idx.to(self.values.device))
        self._pattern, self._seen = None, None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As nn.Linear does it, for as many inputs as a row really has. A layer that lost its pattern
        (`to_empty()`) gets a new one."""
        if self._shard is None and self._misfit(self.row_ptr, self.col_idx, self.values):
            for buffer, drawn in zip((self.row_ptr, self.col_idx), random_pattern(self._grid, self.density)):
                buffer.copy_(drawn)
        fan_in = self.in_features * self.density
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
        for t in (self.values, self.bias):
            if t is not None and not t.is_meta:
                nn.init.uniform_(t, -bound, bound)
        if self._shard is not None:
            self._shard.clear_padding(self.values)

    @classmethod
    def from_dense(
        cls,
        linear: nn.Module,
        block: Any = (64, 64),
        density: float | None = None,
        threshold: float | None = None,
        activation: str | None = None,
    ) -> SparseLinear:
        """Keeps the share `density` (0.125) of a layer's blocks that has the largest norms, or those above
        `threshold`. A share above 0 is at least one block. The layer is an `nn.Linear`, or a `Conv1D` of
        transformers.

        >>> import torch, sparse_autotune as sa
        >>> sparse = sa.SparseLinear.from_dense(torch.nn.Linear(64, 64), block=16, density=0.5)
        >>> sparse.matrix().stored_blocks
        8
        """
        if not isinstance(linear, nn.Linear) and not _sparsify.is_linear(linear):
            raise TypeError(f"linear is a {type(linear).__name__}; expected a torch.nn.Linear")
        if nn.parameter.is_lazy(linear.weight):
            raise ValueError(
                f"linear is a {type(linear).__name__} that has no weight yet; expected one that has seen its "
                "first input"
            )
        if linear.weight.device.type not in ("cpu", "cuda"):
            raise ValueError(f"linear is on {linear.weight.device}; expected cpu or cuda")
        layer = cls._from_weight(linear, linear.weight.detach(), block, density, threshold, activation)
        if linear.bias is not None:
            layer.bias = nn.Parameter(linear.bias.detach().clone())
            _keep_grad(layer.bias, linear.bias)
        return layer

    @classmethod
    def _from_weight(
        cls,
        linear: nn.Module,
        weight: Tensor,
        block: Any,
        density: float | None = None,
        threshold: float | None = None,
        activation: str | None = None,
    ) -> SparseLinear:
        """In the place of a linear layer, with the largest blocks of a weight that is stored as the layer's
        own; without its bias."""
        if _sparsify.stores_transposed(linear):
            weight = weight.T
        share = None if threshold is not None else _check_density(0.125 if density is None else density)
        sides = check_block(block)
        blocks = math.prod(-(-size // side) for size, side in zip(weight.shape, sides))
        keep = None if share is None else _blocks_of(share, blocks) / max(blocks, 1)
        kept = BsrMatrix.from_dense(weight, sides, keep=keep, threshold=threshold)
        layer = cls.from_matrix(kept, None, activation)
        _keep_grad(layer.values, linear.weight)
        layer.train(linear.training)
        return layer

    @classmethod
    def from_matrix(
        cls,
        matrix: BsrMatrix,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> SparseLinear:
        """A layer whose weight is this matrix, of shape (out_features, in_features)."""
        if not isinstance(matrix, BsrMatrix):
            raise TypeError(f"matrix is a {type(matrix).__name__}; expected a BsrMatrix")
        if bias is not None and not isinstance(bias, Tensor):
            raise TypeError(f"bias is a {type(bias).__name__}; expected a torch.Tensor")
        refuse_nested(torch, bias, "bias")
        if bias is not None and tuple(bias.shape) != matrix.shape[:1]:
            raise ValueError(f"bias has shape {tuple(bias.shape)}; expected {matrix.shape[:1]}")
        matrix = matrix.to_static()
        if matrix.is_transposed:
            matrix = matrix.contiguous()
        values = (
            matrix.values if isinstance(matrix.values, Tensor) else torch.as_tensor(matrix.values)
        ).detach()
        out_features, in_features = matrix.shape
        layer = cls(
            in_features, out_features, matrix.block, 0.0, bias is not None, activation, "meta", values.dtype
        )
        layer.values = nn.Parameter(values.clone())
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone())
        layer.row_ptr, layer.col_idx = (
            torch.tensor(i, dtype=torch.int32, device=values.device) for i in (matrix.row_ptr, matrix.col_idx)
        )
        return layer

    @property
    def weight(self) -> Tensor:
        """What the blocks mean as a dense weight of shape (out_features, in_features), for models that read
        the weight of a layer.

        Its dtype, device and shape cost nothing. Everything else makes the dense matrix, at each use, with
        gradients to `values`. It is no parameter, and can be
        multiplied by a number in place, but not written to otherwise: write to `values`.

        >>> import torch, sparse_autotune as sa
        >>> layer = sa.SparseLinear(128, 64, block=16, density=0.25)
        >>> layer.weight.dtype, layer.weight.shape
        (torch.float32, torch.Size([64, 128]))
        >>> torch.equal(layer.weight @ torch.eye(128), layer.to_dense().weight)
        True
        """
        return weight_of(self)

    @weight.setter
    def weight(self, weight: Tensor) -> None:
        if getattr(weight, "_layer", None) is not self:  # what `layer.weight *= 2` gives back
            raise AttributeError("weight is made of the stored blocks; expected a write to values")

    # ---- the pattern, which follows the buffers ----

    @property
    def _grid(self) -> tuple[int, int]:
        return -(-self.out_features // self.block[0]), -(-self.in_features // self.block[1])

    @property
    def density(self) -> float:
        grid = math.prod(self._grid)
        return self.col_idx.shape[0] / grid if grid else 0.0

    def pattern(self) -> Any:
        """The pattern of the buffers as they are; made again only when they have changed."""
        seen, now = self._seen, (self.row_ptr, self.col_idx)
        if seen is None or seen.tensors[0] is not now[0] or seen.tensors[1] is not now[1] or not seen.still():
            shape, device = (self.out_features, self.in_features), str(now[0].device)
            if now[0].device.type == "meta":
                raise RuntimeError(
                    "row_ptr is on the meta device: this layer has no pattern yet; load a state_dict"
                )
            before = self._pattern
            if (
                before is None
                or before.block != self.block
                or not before.same_indices(now[0].cpu().numpy(), now[1].cpu().numpy())
            ):
                before = make_pattern(*now, shape, self.block, device)
            self._pattern, self._seen = (
                before,
                patterns.Owned(now, patterns.remember(*now, before)),
            )
            for t in now:
                private.mark_static(t)
        return self._pattern

    # ---- values that do not change ----

    def freeze(self) -> SparseLinear:
        """Says that `values` stay as they are, as in inference, and turns off their gradient; returns the
        layer. Kernels that keep them in another form then convert them once, and not at each call.

        Gradients still reach x and the bias. A state_dict that is loaded, `.to()`, new `values` and writes
        that torch counts are seen by the next call; see `BsrMatrix.freeze` for those that are not, which
        need `refresh()`. A state_dict does not tell whether a layer is frozen; copies and pickles are."""
        if not self._frozen:
            self._frozen, self._trained = True, self.values.requires_grad
            self.values.requires_grad_(False)
            self._refresh_if_whole()
        return self

    def unfreeze(self) -> SparseLinear:
        """Takes `freeze()` back; `values` require gradients again if they did before."""
        if self._frozen:
            self._frozen, self._fixed = False, None
            if self._trained:
                self.values.requires_grad_()
        return self

    @property
    def is_frozen(self) -> bool:
        return self._frozen

    def refresh(self) -> None:
        """Takes in values that were written to in a way that is not seen: see `BsrMatrix.freeze`."""
        if self._prepare() is not None:
            self._fixed.refresh(self.values)

    def _prepare(self) -> Any:
        """The plans of the frozen values, made where there are none for this pattern: operators find them
        by the values' address. None where the values have no memory, or are not frozen."""
        if not self._frozen or self.values.device.type not in ("cpu", "cuda") or not plain(self.values):
            self._fixed = None
        else:
            self._plans(self.pattern())
        return self._fixed

    def _plans(self, pattern: Any) -> Any:
        if self._fixed is None or self._fixed.pattern is not pattern:
            self._fixed = _fixed.of(pattern, check_values(self.values, pattern))
        return self._fixed

    def _apply(self, *arguments: Any, **words: Any) -> SparseLinear:
        """to(), half() and the like may move the values; those of before, and their plans, go at once."""
        super()._apply(*arguments, **words)
        if self._shard is not None:
            self._shard.follow(self)
        self._refresh_if_whole()
        return self

    def _refresh_if_whole(self) -> None:
        """For compiled calls, which only find plans that are there. An eager call makes them by itself, or
        tells what is wrong with a layer that is not whole, as after `to_empty()`."""
        with contextlib.suppress(RuntimeError, ValueError):
            self.refresh()

    def matrix(self) -> BsrMatrix:
        """The weight, sharing values and pattern with the layer. Inside torch.compile it breaks the graph."""
        return _matrix_outside(self) if torch.compiler.is_dynamo_compiling() else _matrix(self)

    def __deepcopy__(self, memo: dict) -> SparseLinear:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        twin.__dict__ = {
            k: (
                v
                if k in ("_pattern", "_shard")
                else None
                if k in ("_seen", "_fixed")
                else copy.deepcopy(v, memo)
            )
            for k, v in self.__dict__.items()
        }
        return twin

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_pattern": None, "_seen": None, "_fixed": None}

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        """A pattern with another number of blocks makes the layer's own follow; one that does not fit changes
        nothing."""
        parts = [state_dict.get(prefix + name) for name in ("row_ptr", "col_idx", "values")]
        cut = self._shard is not None
        wrong = self._shard.misfit(state_dict, prefix) if cut else self._misfit(*parts)
        other = parts[1] is not None and parts[1].shape != self.col_idx.shape
        if not wrong and other and hasattr(self.values, "device_mesh"):
            wrong = (
                "it has another number of blocks, and values are sharded: load the pattern before "
                "fully_shard (sparse_autotune.distributed.load_patterns)"
            )
        if wrong:
            # error_msgs
            rest[-1].append(f"{prefix.rstrip('.') or 'SparseLinear'} is left as it was: {wrong}")
            return
        if not cut and other:
            count = parts[1].shape[0]
            self.values = nn.Parameter(self.values.new_empty((count, *self.block)), self.values.requires_grad)
            # another layer may have the old ones
            self.row_ptr, self.col_idx = (self.row_ptr.clone(), self.col_idx.new_zeros(count))
        self._seen = None  # before the write, since a last look may follow
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self.row_ptr.is_inference() or self.col_idx.is_inference():
            patterns.forget(self.row_ptr, self.col_idx, (self.out_features, self.in_features), self.block)
        self._refresh_if_whole()

    def _misfit(self, row_ptr: Tensor | None, col_idx: Tensor | None, values: Tensor | None) -> str:
        """Why these parts, of a state_dict say, cannot be this layer's; "" where they can, or where nobody
        can tell."""
        if row_ptr is None and col_idx is None:
            return ""  # values alone fit as any parameter does
        if row_ptr is None or col_idx is None or (values is None and col_idx.shape != self.col_idx.shape):
            return "row_ptr, col_idx and values belong together, and the state_dict lacks some of them"
        if row_ptr.shape != self.row_ptr.shape:
            return f"row_ptr has shape {tuple(row_ptr.shape)}; expected {tuple(self.row_ptr.shape)}"
        if col_idx.dim() != 1:
            return f"col_idx has {col_idx.dim()} dimensions; expected 1"
        expected = (col_idx.shape[0], *self.block)
        if values is not None and tuple(values.shape) != expected:
            return f"values has shape {tuple(values.shape)}; expected {expected}"
        if (
            not torch.compiler.is_dynamo_compiling()
            and plain(row_ptr, col_idx)
            and "meta" not in (row_ptr.device.type, col_idx.device.type)
        ):
            try:
                make_pattern(row_ptr, col_idx, (self.out_features, self.in_features), self.block)
            except (TypeError, ValueError) as error:
                return str(error)
        return ""

    # ---- forward ----

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; expected a torch.Tensor")
        if self._shard is not None:
            return self._shard.forward(self, x)
        return self._multiply(x, self.values, self.bias)

    def _multiply(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        refuse_nested(torch, x, "x")
        if x.layout is not torch.strided or not x.dtype.is_floating_point:
            raise TypeError(
                f"x is a tensor of layout {x.layout} and dtype {x.dtype}; expected a strided one of "
                "floating-point numbers"
            )
        if x.device != values.device:
            raise ValueError(f"x is on {x.device} and values on {values.device}; expected one device")
        shape = x.shape
        if not shape or shape[-1] != self.in_features:
            raise ValueError(f"x has shape {tuple(shape)}; expected {self.in_features} columns")
        if torch.compiler.is_compiling() or not plain(x, values, bias) or x.is_meta:
            return self._traced(x, values, bias)
        plans = self.pattern()
        if private.any_autocast():
            return self._traced(x, values, bias)
        if x.dtype != values.dtype:
            raise TypeError(f"x has dtype {x.dtype} and values {values.dtype}; expected one dtype")
        if self._frozen:
            plans = self._plans(plans)
        # W is stored as (out, in): x @ W.T is the transposed product seen from the left.
        if torch.is_grad_enabled() and (
            x.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)
        ):
            result = Product.of_plain(values, x, bias, plans, True, True, 1.0)
            return result if self.activation is None else ACTIVATIONS[self.activation](result)
        return forward(plans, values, True, x, True, bias, _products.activation_code(self.activation), 1.0)

    def _traced(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        if tuple(values.shape[1:]) != self.block:  # the operator takes the block from its values
            raise ValueError(
                f"values has shape {tuple(values.shape)}; expected {(self.col_idx.shape[0], *self.block)}"
            )
        fused = self.activation is not None and calls.may_fuse()
        values, row_ptr, col_idx, bias = alike(x, values, self.row_ptr, self.col_idx, bias)
        result = torch.ops.sparse_autotune.matmul(
            values,
            row_ptr,
            col_idx,
            x,
            bias,
            (self.out_features, self.in_features),
            True,
            True,
            1.0,
            self.activation if fused else "none",
            self._frozen,
        )
        return result if fused or self.activation is None else ACTIVATIONS[self.activation](result)

    def to_dense(self) -> nn.Linear:
        """An nn.Linear with the same weight, zeros included."""
        weight = self.matrix().to_dense().detach()
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight = nn.Parameter(weight)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach().clone())
        _keep_grad(linear.weight, self.values)
        _keep_grad(linear.bias, self.bias)
        return linear

    def extra_repr(self) -> str:
        parts = (
            f"in_features={self.in_features}, out_features={self.out_features}, block={self.block}, "
            f"stored_blocks={self.col_idx.shape[0]}, density={self.density:.4g}, bias={self.bias is not None}"
        )
        parts += f", activation={self.activation!r}" if self.activation else ""
        parts += f", {self._shard}" if self._shard is not None else ""
        return parts + (", frozen=True" if self._frozen else "")


def _matrix(layer: SparseLinear) -> BsrMatrix:
    if layer._shard is not None:
        raise RuntimeError(
            "this layer is cut, and each rank has a part of it: sparse_autotune.distributed.plain_state_dict "
            "gathers the whole"
        )
    pattern = layer.pattern()
    fixed = layer._plans(pattern) if layer._frozen else None
    return BsrMatrix._make(pattern, check_values(layer.values, pattern), False, fixed)


# torch.compiler.disable would import the compiler here and now
_matrix_outside = private.outside_compiler(_matrix)


# ---- whole models ----


def freeze(model: nn.Module) -> nn.Module:
    """Freezes every `SparseLinear` of a model, for serving; returns the model. See `SparseLinear.freeze`.

    >>> import torch, sparse_autotune as sa
    >>> model = sa.sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), block=16, density=0.25)
    >>> sa.freeze(model)[0].is_frozen
    True
    """
    for layer in _layers(model):
        layer.freeze()
    return model


def unfreeze(model: nn.Module) -> nn.Module:
    """Takes `freeze()` back for every `SparseLinear` of a model; returns the model."""
    for layer in _layers(model):
        layer.unfreeze()
    return model


def refresh(model: nn.Module) -> None:
    """Takes in values of frozen layers that were written to in a way that is not seen: by collectives,
    DLPack, NumPy or `.data`."""
    for layer in _layers(model):
        layer.refresh()


def _layers(model: nn.Module) -> list[SparseLinear]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    return [module for module in model.modules() if isinstance(module, SparseLinear)]


def sparsify(
    model: nn.Module,
    block: Any = (64, 64),
    density: float = 0.125,
    *,
    threshold: float | None = None,
    include: Callable[[str, nn.Module], bool] | Iterable[str] | str | None = None,
    exclude: Callable[[str, nn.Module], bool] | Iterable[str] | str | None = None,
    smallest: int = 1,
    report: Callable[[SparsifyReport], Any] | None = None,
) -> nn.Module:
    """Replaces `nn.Linear` layers of a model by block-sparse ones that keep their largest blocks, in place;
    returns the model.

    `include` chooses, and `exclude` takes away: each a function of name and layer, or names, which may hold
    ``*``; by default all, and none. Layers with a side below `smallest` blocks are left as they are. A layer
    that stands in several places, one of them chosen, is replaced in all. Frozen layers stay frozen.
    `nn.TransformerEncoderLayer` no longer takes torch's fused way, which knows dense weights only.

    transformers' `Conv1D` (GPT-2) and `FalconLinear` are linear layers too. Other subclasses of `nn.Linear`
    compute in a way of their own and stay dense, torch's included: parametrized layers, and the `out_proj` of
    `nn.MultiheadAttention`. `report` is called with a `SparsifyReport` of what was replaced and what was
    left, and why; ``report=print`` prints it. A model in which nothing was replaced, although something was
    to be, is warned of.

    Each keeps at least one block, unless `density` is 0 or a `threshold` is given. A model that is a linear
    layer itself has the name "", stays as it is, and the new layer is returned. Layers that share a
    weight share `values` then; one that shares it with anything that is not replaced, as an `nn.Embedding`,
    is left as it is. Forward and backward hooks go along, but for pre-hooks where the weight or bias is no
    parameter (pruning, weight norm): these are taken as they stand.

    >>> import torch, sparse_autotune as sa
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    >>> sa.sparsify(model, block=16, density=0.25, report=print)[0]
    1 layers are sparse, 1 are left dense
    0  128x64 in blocks of 16x16, 8 stored, density 0.25
    2  left: 10x128 is smaller than 16x16, the smallest that is asked for
    SparseLinear(in_features=64, out_features=128, block=(16, 16), stored_blocks=8, density=0.25, bias=True)
    """
    sides = check_block(block)
    share = None if threshold is not None else _check_density(density)
    smallest = _check_features(smallest, "smallest")
    rules = _sparsify.Rules(
        sides,
        smallest,
        _sparsify.chooser(include, "include", True),
        _sparsify.chooser(exclude, "exclude", False),
    )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model is a {type(model).__name__}; expected a torch.nn.Module that is not compiled by torch.jit"
        )
    found = _sparsify.Plan(model, rules).replace(
        lambda linear: SparseLinear.from_dense(linear, sides, share, threshold)
    )
    if not found.replaced and any(why not in _sparsify.ASKED for why in found.left.values()):
        warnings.warn(f"sparsify replaced nothing: {found}", stacklevel=2)
    if report is not None:
        report(found)
    if "" in found.replaced:
        return found.replaced[""]
    if found.replaced:
        _sparsify.leave_fast_path(model, SparseLinear)
        _sparsify.tell_transformers(model)
    return model
