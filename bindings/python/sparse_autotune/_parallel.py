"""`SparseLinear` under torch's `parallelize_module`: cut by block rows or by block columns.

Every rank holds the stored blocks of its part, and as many of padding (zeros) as the largest part has more.
So `values` is an ordinary DTensor with even shards, which optimizers, gradient clipping and `fully_shard`
take as they take any other. `row_ptr` and `col_idx` stay those of the whole matrix on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ._cuts import Cut, Layout, block_weights
from ._torch.eager import ACTIVATIONS
from ._torch.private import version_of
from .nn import SparseLinear

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor import parallel as torch_parallel
except ImportError:  # a torch that was built without torch.distributed
    raise RuntimeError("sharded layers need a torch with torch.distributed, 2.6 or newer") from None


def balance(
    *,
    rows: SparseLinear | Iterable[SparseLinear] = (),
    columns: SparseLinear | Iterable[SparseLinear] = (),
    parts: int,
) -> Cut:
    """A cut that gives every rank about as many stored blocks as any other.

    It is for layers that are cut together: the block rows of `rows`, as of an MLP's first layer (for
    `ColwiseParallel`), and the block columns of `columns`, as of its second one (for `RowwiseParallel`). What
    stands between them may do anything that treats features alike, as activations do.

    >>> import torch, sparse_autotune as sa
    >>> up, down = sa.SparseLinear(64, 128, block=16), sa.SparseLinear(128, 64, block=16)
    >>> len(sa.distributed.balance(rows=up, columns=down, parts=2))
    2
    """
    rows = [rows] if isinstance(rows, nn.Module) else list(rows)
    columns = [columns] if isinstance(columns, nn.Module) else list(columns)
    if type(parts) is not int or parts < 1:
        raise ValueError(f"parts is {parts!r}; expected the number of ranks, at least 1")
    weights = [_weights(layer)[0] for layer in _sparse(rows, "rows")]
    weights += [_weights(layer)[1] for layer in _sparse(columns, "columns")]
    sides = [(x.out_features, x.block[0]) for x in rows] + [(x.in_features, x.block[1]) for x in columns]
    if not sides:
        raise ValueError("rows and columns are empty; expected at least one layer")
    if len(set(sides)) > 1:
        raise ValueError(
            f"features and block sides are {sides}; expected the same of all layers that are cut together"
        )
    return Cut.balanced(np.sum(weights, axis=0), parts)


def _weights(layer: SparseLinear) -> tuple[np.ndarray, np.ndarray]:
    return block_weights(layer.row_ptr.cpu().numpy(), layer.col_idx.cpu().numpy(), layer._grid)


def _sparse(layers: list, name: str) -> list[SparseLinear]:
    for layer in layers:
        if not isinstance(layer, SparseLinear):
            raise TypeError(f"{name} has a {type(layer).__name__}; expected SparseLinear")
        if layer.row_ptr.is_meta:
            raise RuntimeError(f"{name} has a layer without a pattern (on meta): load its pattern first")
    return layers


class _Part(SparseLinear):
    """What multiplies on one rank: the pattern of its part. It has no values of its own."""

    def __init__(self, layer: SparseLinear, layout: Layout, rank: int):
        nn.Module.__init__(self)
        row_ptr, col_idx, (self.out_features, self.in_features) = layout.part(rank)
        self.block, self.activation = layer.block, layer.activation if layout.by_rows else None
        self._host = row_ptr, col_idx
        self._pattern, self._seen = None, None
        self.move("cpu")

    def move(self, device: Any) -> None:
        for name, array in zip(("row_ptr", "col_idx"), self._host):
            self.register_buffer(name, torch.tensor(array, device=device), persistent=False)


def _placed(t: Any, placement: Any) -> Any:
    """A DTensor with this placement. Where it has it, torch's redistribute still adds up its gradients; under
    inference_mode, where there are none, it raises."""
    if not torch.is_grad_enabled() and t.placements == (placement,):
        return t
    return t.redistribute(placements=[placement])


def _stamp(t: Tensor) -> tuple:
    """What changes where torch counts a write to a tensor, or another one takes its place."""
    return id(t), t.data_ptr(), version_of(t)


class LayerShard:
    """What one rank has of a layer that is cut, and how a product of it becomes the layer's."""

    def __init__(self, layer: SparseLinear, mesh: Any, by_rows: bool, cut: Cut | None, style: Any):
        block, length = (
            (layer.block[0], layer.out_features) if by_rows else (layer.block[1], layer.in_features)
        )
        cut = Cut.plain(-(-length // block), mesh.size()) if cut is None else cut
        if len(cut) != mesh.size():
            raise ValueError(f"cut has {len(cut)} parts; expected {mesh.size()}, the ranks of the mesh")
        shape = (layer.out_features, layer.in_features)
        indices = layer.row_ptr.cpu().numpy(), layer.col_idx.cpu().numpy()
        self.layout = layout = Layout(*indices, shape, layer.block, by_rows, cut)
        self.mesh, self.by_rows, self.rank = mesh, by_rows, mesh.get_local_rank()
        self.inputs, self.outputs = style.input_layouts, style.output_layouts
        self.use_local_output = style.use_local_output
        self.count, self.stored = len(layout.orders[self.rank]), layout.stored(self.rank)
        self.part = _Part(layer, layout, self.rank)
        self.widest = max(layout.sizes)
        mine = layout.features_of(self.rank)
        self._first, self._many = int(mine[0]) if len(mine) else 0, len(mine)
        self._run = bool(len(mine)) and bool((np.diff(mine) == 1).all())
        self._host = {"mine": mine, "places": self._places(), "row_ptr": layout.row_ptr}
        self._host["col_idx"] = layout.col_idx
        self._kept: dict[str, Tensor] = {}  # the same on the layer's device
        self._seen: list | None = None

    def _places(self) -> np.ndarray:
        """Where each feature stands in the parts' outputs, one after the other and padded to one width."""
        layout, places = self.layout, np.empty(len(self.layout.features), np.int64)
        at = [np.arange(size) + part * self.widest for part, size in enumerate(layout.sizes)]
        places[layout.features] = np.concatenate(at) if at else []
        return places

    def __str__(self) -> str:
        kind = "rows" if self.by_rows else "columns"
        return f"part {self.rank + 1} of {self.mesh.size()} by block {kind}"

    # ---- called by the layer ----

    def follow(self, layer: SparseLinear) -> None:
        """After `.to()` and the like. `to_empty()` loses what indices hold; here it is known."""
        device = layer.row_ptr.device
        if device.type != "meta" and (not self._kept or self.part.row_ptr.device != device):
            self.part.move(device)
            names = ("mine", "places")
            self._kept = {name: torch.from_numpy(self._host[name]).to(device) for name in names}
        self.check(layer, mend=True)

    def check(self, layer: SparseLinear, mend: bool = False) -> None:
        """The buffers must hold the pattern that the layer was cut by."""
        tensors = layer.row_ptr, layer.col_idx, *([layer.cut] if "cut" in layer._buffers else [])
        if torch.compiler.is_compiling() or any(t.is_meta for t in tensors):
            return
        if self._seen == [_stamp(t) for t in tensors]:
            return
        wanted = (self._host["row_ptr"], self._host["col_idx"], np.array(self.layout.numbers()))
        for t, array in zip(tensors, wanted):
            if mend:
                with torch.no_grad():
                    t.copy_(torch.from_numpy(array))
            elif not np.array_equal(t.detach().cpu().numpy(), array):
                raise RuntimeError(
                    "this layer was cut by another pattern, or for other ranks, than what was loaded: load "
                    "the pattern before parallelize_module (sparse_autotune.distributed.load_patterns), and "
                    "save and load by sparse_autotune.distributed's planners"
                )
        self._seen = [_stamp(t) for t in tensors]

    def misfit(self, state: dict, prefix: str) -> str:
        """Why a state_dict cannot be loaded; "" where it can."""
        wanted = {"row_ptr": self._host["row_ptr"], "col_idx": self._host["col_idx"]}
        wanted["cut"] = np.array(self.layout.numbers())
        for name, array in wanted.items():
            t = state.get(prefix + name)
            if t is not None and not t.is_meta and not np.array_equal(t.cpu().numpy(), array):
                return (
                    f"{name} is that of another pattern, or of other ranks, than the layer was cut by; load "
                    "the pattern before parallelize_module (sparse_autotune.distributed.load_patterns)"
                )
        values = state.get(prefix + "values")
        if values is not None and not isinstance(values, DTensor):
            return (
                "values is in one piece, and the layer is cut; expected "
                "sparse_autotune.distributed.load_plain_state_dict"
            )
        return ""

    def clear_padding(self, values: Any) -> None:
        local = values.to_local() if isinstance(values, DTensor) else values
        if not local.is_meta:
            mine = self.stored_by(values)
            with torch.no_grad():
                local[torch.from_numpy(np.flatnonzero(mine < 0)).to(local.device)] = 0

    def stored_by(self, tensor: Any) -> np.ndarray:
        """The number in the whole matrix of each block in the local tensor of a DTensor that is cut as
        `values` is, further cut by `fully_shard` or not; -1: padding."""
        stored, names = self.stored, self.mesh.mesh_dim_names
        if not isinstance(tensor, DTensor) or tensor.device_mesh.ndim == 1:
            return stored
        mesh = tensor.device_mesh
        own = mesh.mesh_dim_names.index(names[0]) if names else mesh.ndim - 1
        for dim, placement in enumerate(tensor.placements):
            if dim != own and getattr(placement, "dim", None) == 0:  # is_shard denies strided ones
                each, at = -(-self.layout.width // mesh.size(dim)), mesh.get_local_rank(dim)
                stored = stored[at * each : (at + 1) * each]
            elif dim != own and not placement.is_replicate():
                raise ValueError(f"values are placed as {tensor.placements}; expected shards of dimension 0")
        return stored

    # ---- forward ----

    def _mine(self, x: Tensor, dim: int) -> Tensor:
        """Of all features this rank's own."""
        if self._run:
            return x.narrow(dim, self._first, self._many)
        return x.index_select(dim, self._kept["mine"])

    def _take(self, x: Tensor, features: int) -> Tensor:
        """The input as this rank multiplies it, a plain tensor."""
        if not x.shape or not isinstance(x, DTensor) and x.is_nested:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected rows of {features} features")
        last = x.dim() - 1
        if not isinstance(x, DTensor):
            layout = self.inputs[0]
            if not self.by_rows and layout.is_shard() and layout.dim in (-1, last):
                if x.shape[-1] != self.part.in_features:
                    raise ValueError(
                        f"x has shape {tuple(x.shape)}; expected {self.part.in_features} columns, this "
                        f"rank's of {features}: were the layer before it and this one cut alike?"
                    )
                return x
            x = DTensor.from_local(x, self.mesh, self.inputs, run_check=False)
        if not self.by_rows and self.layout.even:
            return _placed(x, Shard(last)).to_local()
        # Each rank's gradient is that of its own part: they are added up.
        x = _placed(x, Replicate()).to_local(grad_placements=[Partial()])
        return x if self.by_rows else self._mine(x, last)

    def _bias(self, bias: Any) -> Tensor | None:
        if bias is None or not isinstance(bias, DTensor):
            return bias
        if bias.placements[0].is_shard():
            return bias.to_local()
        whole = _placed(bias, Replicate()).to_local(grad_placements=[Partial()])
        return self._mine(whole, 0)

    def forward(self, layer: SparseLinear, x: Tensor) -> Tensor:
        self.check(layer)
        values = layer.values.to_local()
        if self.count != values.shape[0]:
            values = values.narrow(0, 0, self.count)
        if self.by_rows:
            x = self._take(x, layer.in_features)
            y = self.part._multiply(x, values, self._bias(layer.bias))
            return self._outputs_of_rows(y)
        x = self._take(x, layer.in_features)
        y = self._outputs_of_columns(self.part._multiply(x, values, None), layer.bias)
        y = y if layer.activation is None else ACTIVATIONS[layer.activation](y)
        return y if self.use_local_output else DTensor.from_local(y, self.mesh, self.outputs, run_check=False)

    def _outputs_of_rows(self, y: Tensor) -> Tensor:
        last, wanted = y.dim() - 1, self.outputs[0]
        sharded = wanted.is_shard() and wanted.dim in (-1, last)
        if sharded and self.use_local_output:
            return y
        if self.layout.even:
            whole = DTensor.from_local(y, self.mesh, [Shard(last)], run_check=False)
        else:  # padded to one width, gathered, and put into order
            y = nn.functional.pad(y, (0, self.widest - y.shape[-1]))
            whole = DTensor.from_local(y, self.mesh, [Shard(last)], run_check=False)
            whole = whole.redistribute(placements=[Replicate()]).to_local()
            whole = whole.index_select(last, self._kept["places"])
            whole = DTensor.from_local(whole, self.mesh, [Replicate()], run_check=False)
        if whole.placements != self.outputs:
            whole = whole.redistribute(placements=self.outputs)
        return whole.to_local() if self.use_local_output else whole

    def _outputs_of_columns(self, y: Tensor, bias: Any) -> Tensor:
        """Sums over ranks, and the bias, which is added once."""
        wanted, last = self.outputs[0], y.dim() - 1
        y = DTensor.from_local(y, self.mesh, [Partial()], run_check=False)
        y = y.redistribute(placements=self.outputs).to_local()
        if bias is None:
            return y
        if isinstance(bias, DTensor):
            if wanted.is_shard() and wanted.dim in (-1, last):
                bias = _placed(bias, Shard(0)).to_local()
            elif wanted.is_shard():  # each rank sees the gradient of its own rows
                bias = _placed(bias, Replicate()).to_local(grad_placements=[Partial()])
            else:
                bias = bias.to_local()
        return y + bias


# ---- cutting a layer ----


def _agree_on_pattern(layer: SparseLinear, mesh: Any, source: int | None) -> None:
    """Rank 0 of the mesh drew a pattern; the others take it."""
    if source is None or mesh.size() == 1:
        return
    group, device = mesh.get_group(), layer.row_ptr.device
    there = torch.distributed.get_global_rank(group, source)
    count = torch.tensor([layer.col_idx.shape[0]], device=mesh.device_type)
    torch.distributed.broadcast(count, there, group=group)
    if int(count) != layer.col_idx.shape[0]:
        kind = {"dtype": layer.values.dtype, "device": layer.values.device}
        layer.values = nn.Parameter(torch.zeros(int(count), *layer.block, **kind), layer.values.requires_grad)
        layer.col_idx = layer.col_idx.new_zeros(int(count))
    for name in ("row_ptr", "col_idx"):
        sent = getattr(layer, name).to(mesh.device_type)
        torch.distributed.broadcast(sent, there, group=group)
        getattr(layer, name).copy_(sent.to(device))
    layer._seen = None


def _distribute(whole: Tensor, mesh: Any, placement: Any, source: int | None) -> DTensor:
    if source == 0:
        return distribute_tensor(whole, mesh, [placement])
    if source is not None:
        return distribute_tensor(whole, mesh, [placement], src_data_rank=source)  # torch 2.7
    rank = mesh.get_local_rank()
    local = whole.chunk(mesh.size())[rank].contiguous() if placement.is_shard() else whole
    return DTensor.from_local(local, mesh, [placement], run_check=False)


def cut_layer(layer: SparseLinear, mesh: Any, by_rows: bool, cut: Cut | None, style: Any) -> SparseLinear:
    """In place: `values` and `bias` become DTensors."""
    if mesh.ndim != 1:
        raise ValueError(f"device_mesh has {mesh.ndim} dimensions; expected 1: take a part of it by its name")
    if layer._shard is not None or isinstance(layer.values, DTensor):
        raise ValueError("the layer is sharded already; expected parallelize_module before fully_shard")
    if layer._frozen:
        raise ValueError("the layer is frozen; unfreeze() it, cut it, and turn off its gradient after that")
    if layer.row_ptr.is_meta:
        raise RuntimeError(
            "the layer is on the meta device and has no pattern, by which it would be cut: load its pattern "
            "first (sparse_autotune.distributed.load_patterns)"
        )
    if any(p.is_partial() for p in style.output_layouts):
        raise ValueError(f"output_layouts is {style.output_layouts}; expected Shard or Replicate")
    source = getattr(style, "src_data_rank", 0)
    _agree_on_pattern(layer, mesh, source)
    shard = LayerShard(layer, mesh, by_rows, cut, style)
    layout, values = shard.layout, layer.values.detach()
    if not layout.exact:
        order = np.concatenate([layout.stored(rank) for rank in range(mesh.size())])
        if values.is_meta:
            values = values.new_empty((len(order), *layer.block))
        else:
            at = torch.from_numpy(order).to(values.device)
            padded = torch.cat((values, values.new_zeros(1, *layer.block)))
            values = padded.index_select(0, torch.where(at < 0, values.shape[0], at))
        layer.register_buffer("cut", torch.tensor(layout.numbers(), device=layer.row_ptr.device))
    trained = layer.values.requires_grad
    layer.values = nn.Parameter(_distribute(values, mesh, Shard(0), source), trained)
    if layer.bias is not None:
        placement = Shard(0) if by_rows and layout.even else Replicate()
        made = _distribute(layer.bias.detach(), mesh, placement, source)
        layer.bias = nn.Parameter(made, layer.bias.requires_grad)
    layer._shard, layer._seen = shard, None
    shard.follow(layer)
    return layer


def _check_cut(cut: Any) -> Cut | None:
    if cut is not None and not isinstance(cut, Cut):
        raise TypeError(
            f"cut is a {type(cut).__name__}; expected what sparse_autotune.distributed.balance returns"
        )
    return cut


class ColwiseParallel(torch_parallel.ColwiseParallel):
    """torch's style of this name, for `SparseLinear` too: each rank computes some of a layer's outputs.

    Arguments are torch's, and any other layer is torch's. Without `cut` block rows go to ranks as
    `torch.chunk` would. A `cut` of `balance` gives every rank about as many stored blocks; local
    outputs are then in the cut's order, which a `RowwiseParallel` with the same cut takes. Outputs of any
    other kind (``output_layouts=Replicate()``, ``use_local_output=False``) are in the layer's own order.

    >>> import sparse_autotune as sa
    >>> plan = {"up": sa.distributed.ColwiseParallel(), "down": sa.distributed.RowwiseParallel()}
    >>> # torch.distributed.tensor.parallel.parallelize_module(mlp, mesh, plan)
    """

    def __init__(self, *, cut: Cut | None = None, **words: Any):
        super().__init__(**words)
        self.cut = _check_cut(cut)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        if isinstance(module, SparseLinear):
            return cut_layer(module, device_mesh, True, self.cut, self)
        return super()._apply(module, device_mesh)


class RowwiseParallel(torch_parallel.RowwiseParallel):
    """torch's style of this name, for `SparseLinear` too: each rank multiplies some of a layer's inputs, and
    the results are added up.

    Arguments are torch's, and any other layer is torch's. `cut` is that of the layer before it.

    >>> import sparse_autotune as sa
    >>> sa.distributed.RowwiseParallel().use_local_output
    True
    """

    def __init__(self, *, cut: Cut | None = None, **words: Any):
        super().__init__(**words)
        self.cut = _check_cut(cut)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        if isinstance(module, SparseLinear):
            return cut_layer(module, device_mesh, False, self.cut, self)
        return super()._apply(module, device_mesh)
