"""Checkpoints of layers that are cut.

A rank's blocks are some of the matrix's, and a checkpoint has them in the order of the matrix in one piece:
it does not show on how many ranks it was written, or how they were cut. torch's own planners could not know
that order, nor leave out the padding; the two here do, for parameters and for what optimizers keep of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ._cuts import runs
from ._parallel import LayerShard
from .nn import SparseLinear

try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import (
        LoadPlan,
        ReadItem,
        SavePlan,
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.tensor import DTensor
except ImportError:
    raise RuntimeError("distributed checkpoints need torch 2.6 or newer, with torch.distributed") from None

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def _layers(model: nn.Module) -> Iterator[tuple[str, SparseLinear]]:
    """Sparse layers by their names, without what wrappers put into these."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    wrapped = {
        f"{name}.module" if name else "module"
        for name, module in model.named_modules()
        if isinstance(module, nn.parallel.DistributedDataParallel)
    }
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, SparseLinear):
            words = name.split(".") if name else []
            yield (
                ".".join(
                    word
                    for i, word in enumerate(words)
                    if word not in _WRAPPERS and ".".join(words[: i + 1]) not in wrapped
                ),
                module,
            )


class _Shards:
    """The layers of a model that are cut, found by the names of tensors in a state_dict."""

    def __init__(self, model: nn.Module):
        self._by_name = {name: x._shard for name, x in _layers(model) if x._shard is not None}

    def _named(self, key: str, what: str) -> LayerShard | None:
        words = key.split(".")
        for at, word in enumerate(words):
            if word == what:
                for begin in range(at + 1):  # the longest name first
                    found = self._by_name.get(".".join(words[begin:at]))
                    if found is not None:
                        return found
        return None

    def of_values(self, key: str, value: Any) -> LayerShard | None:
        """The shard whose blocks this is, or what an optimizer keeps of them."""
        if not isinstance(value, DTensor):
            return None
        found = self._named(key, "values")
        if found is None:
            return None
        layout = found.layout
        return found if tuple(value.shape) == (len(layout.cut) * layout.width, *layout.block) else None

    def is_cut(self, key: str) -> bool:
        """Whether this buffer says how a layer is cut, which no checkpoint needs."""
        return key.rpartition(".")[2] == "cut" and self._named(key, "cut") is not None


class _Blocks:
    """Local blocks of a DTensor as chunks of the matrix in one piece."""

    def __init__(self, shard: LayerShard, tensor: Any):
        self.local, layout = tensor.to_local().detach(), shard.layout
        stored = shard.stored_by(tensor)
        if len(stored) != self.local.shape[0]:
            raise ValueError(
                f"a rank has {self.local.shape[0]} blocks of {tuple(tensor.shape)}; expected {len(stored)}"
            )
        self.padding = np.flatnonzero(stored < 0)
        self.size = torch.Size((len(layout.col_idx), *layout.block))
        self._places = {number: (place, count) for place, number, count in runs(stored)}

    def chunks(self) -> list[Any]:
        return [
            ChunkStorageMetadata(torch.Size((number, 0, 0)), torch.Size((count, *self.size[1:])))
            for number, (_, count) in self._places.items()
        ]

    def at(self, index: Any) -> Tensor:
        place, count = self._places[index.offset[0]]
        return self.local.narrow(0, place, count)


class _Planner:
    """What both planners do: keep tensors of cut layers from torch's own planner."""

    def __init__(self, model: nn.Module, **words: Any):
        super().__init__(**words)
        self._shards, self._blocks = _Shards(model), dict[str, _Blocks]()

    def _set_apart(self) -> Any:
        """Takes them out of the state_dict, and returns the whole one."""
        whole, self._blocks = self.state_dict, {}
        for key, value in whole.items():
            shard = self._shards.of_values(key, value)
            if shard is not None:
                self._blocks[key] = _Blocks(shard, value)
        self.state_dict = {
            key: value
            for key, value in whole.items()
            if key not in self._blocks and not self._shards.is_cut(key)
        }
        return whole


class SavePlanner(_Planner, dcp.DefaultSavePlanner):
    """Saves layers that are cut in the order of the matrix in one piece: for
    ``dcp.save(state, planner=SavePlanner(model))``, on every rank.

    What it writes is loaded on any mesh by `LoadPlanner`, and by torch's own planner where layers are not
    cut. Other arguments are those of torch's `DefaultSavePlanner`.
    """

    def create_local_plan(self) -> SavePlan:
        whole = self._set_apart()
        try:
            plan = super().create_local_plan()
        finally:
            self.state_dict = whole
        items = [
            WriteItem(
                index=MetadataIndex(key, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(blocks.local),
                    size=blocks.size,
                ),
            )
            for key, blocks in self._blocks.items()
            for chunk in blocks.chunks()
        ]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *items])
        return self.plan

    def lookup_object(self, index: Any) -> Any:
        blocks = self._blocks.get(index.fqn)
        return super().lookup_object(index) if blocks is None else blocks.at(index)


class LoadPlanner(_Planner, dcp.DefaultLoadPlanner):
    """Loads into layers that are cut, however many ranks wrote the checkpoint: for
    ``dcp.load(state, planner=LoadPlanner(model))``, on every rank.

    The layers must have been cut by the pattern that the checkpoint has: see `load_patterns`. Other arguments
    are those of torch's `DefaultLoadPlanner`.
    """

    def create_local_plan(self) -> LoadPlan:
        whole, metadata = self._set_apart(), self.metadata
        # Keys that the checkpoint alone has would be taken for a sign of an old one (torch 2.3).
        known = {k: m for k, m in metadata.state_dict_metadata.items() if k not in self._blocks}
        self.metadata = dataclasses.replace(metadata, state_dict_metadata=known)
        try:
            plan = super().create_local_plan()
        finally:
            self.state_dict, self.metadata = whole, metadata
        items: list[ReadItem] = []
        for key, blocks in self._blocks.items():
            saved = self.metadata.state_dict_metadata.get(key)
            if saved is None and (self.allow_partial_load or not blocks.size[0]):
                continue
            if not isinstance(saved, TensorStorageMetadata):
                raise RuntimeError(f"Missing key in checkpoint state_dict: {key}.")
            if saved.size != blocks.size:
                raise ValueError(
                    f"{key} has shape {tuple(saved.size)} in the checkpoint; expected {tuple(blocks.size)}: "
                    "load its pattern before parallelize_module (sparse_autotune.distributed.load_patterns). "
                    "A layer that is cut must have been saved by SavePlanner"
                )
            items += create_read_items_for_chunk_list(key, saved, blocks.chunks())
            with torch.no_grad():
                blocks.local[torch.from_numpy(blocks.padding).to(blocks.local.device)] = 0
        return dataclasses.replace(plan, items=[*plan.items, *items])

    def lookup_tensor(self, index: Any) -> Tensor:
        blocks = self._blocks.get(index.fqn)
        return super().lookup_tensor(index) if blocks is None else blocks.at(index)


def load_patterns(
    model: nn.Module,
    checkpoint_id: Any = None,
    *,
    storage_reader: Any = None,
    prefix: str | None = None,
) -> nn.Module:
    """Gives the sparse layers of a model the patterns that a distributed checkpoint has; returns the model.

    To be called on every rank, before `parallelize_module`, `fully_shard` and the making of optimizers:
    layers are cut by their patterns. Values are not loaded; where a layer has another number of blocks than
    before, `values` is a new parameter. A layer on the meta device has its indices on the CPU after that.
    `prefix` stands before the layers' names in the checkpoint, as in "model."; it may be left out where only
    one does.
    """
    reader = dcp.FileSystemReader(checkpoint_id) if storage_reader is None else storage_reader
    known = reader.read_metadata().state_dict_metadata
    layers, wanted = dict(_layers(model)), {}
    if any(layer._shard is not None or isinstance(layer.values, DTensor) for layer in layers.values()):
        raise ValueError("model is sharded already; expected load_patterns before parallelize_module")
    for name in layers:
        before = _prefix(known, f"{name}.row_ptr" if name else "row_ptr") if prefix is None else prefix
        for part in ("row_ptr", "col_idx"):
            key = f"{before}{name}.{part}" if name else before + part
            if not isinstance(known.get(key), TensorStorageMetadata):
                raise ValueError(f"the checkpoint has no {key}")
            wanted[key] = torch.empty(known[key].size, dtype=known[key].properties.dtype)
            wanted[name, part] = wanted[key]
    loaded = {key: t for key, t in wanted.items() if isinstance(key, str)}
    dcp.load(loaded, storage_reader=reader)
    for name, layer in layers.items():
        row_ptr, col_idx = wanted[name, "row_ptr"], wanted[name, "col_idx"]
        wrong = layer._misfit(row_ptr, col_idx, layer.values.new_empty((len(col_idx), *layer.block)))
        if wrong:
            raise ValueError(f"the checkpoint's pattern does not fit {name}: {wrong}")
        if len(col_idx) != layer.values.shape[0]:
            values = layer.values.new_zeros((len(col_idx), *layer.block))
            layer.values = nn.Parameter(values, layer.values.requires_grad)
        device = "cpu" if layer.row_ptr.is_meta else layer.row_ptr.device
        layer.row_ptr, layer.col_idx, layer._seen = row_ptr.to(device), col_idx.to(device), None
    return model


def _prefix(known: dict, name: str) -> str:
    """What stands before a name in a checkpoint."""
    found = [key[: -len(name)] for key in known if key == name or key.endswith(f".{name}")]
    if not found:
        raise ValueError(f"the checkpoint has no {name}")
    if "" in found or len(found) == 1:
        return "" if "" in found else found[0]
    raise ValueError(f"the checkpoint has {name} behind each of {found}; expected prefix= to name one")


# ---- in one piece ----


def plain_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict that the model would have in one process, on every rank.

    To be called on every rank; layers that are cut, and all other DTensors, are gathered one by one.
    """
    shards, found = _Shards(model), {}
    for key, value in get_model_state_dict(model).items():
        shard = shards.of_values(key, value)
        if shard is not None:
            found[key] = _gather(shard, value)
        elif not shards.is_cut(key):
            found[key] = value.full_tensor() if isinstance(value, DTensor) else value
    return found


def _gather(shard: LayerShard, tensor: Any) -> Tensor:
    local, stored = tensor.to_local().detach(), torch.from_numpy(shard.stored_by(tensor))
    mesh, stored = tensor.device_mesh, stored.to(local.device)
    for dim, placement in enumerate(tensor.placements):
        if placement.is_replicate() or mesh.size(dim) == 1:
            continue
        group = mesh.get_group(dim)
        most = torch.tensor([local.shape[0]], device=local.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group=group)
        lacking = int(most) - local.shape[0]
        local = torch.cat((local, local.new_zeros(lacking, *local.shape[1:])))
        stored = torch.cat((stored, stored.new_full((lacking,), -1)))
        all_local = [torch.empty_like(local) for _ in range(mesh.size(dim))]
        all_stored = [torch.empty_like(stored) for _ in range(mesh.size(dim))]
        torch.distributed.all_gather(all_local, local.contiguous(), group=group)
        torch.distributed.all_gather(all_stored, stored.contiguous(), group=group)
        local, stored = torch.cat(all_local), torch.cat(all_stored)
    whole = local.new_empty((len(shard.layout.col_idx), *shard.layout.block))
    kept = stored >= 0
    whole[stored[kept]] = local[kept]
    return whole


def load_plain_state_dict(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Loads the state_dict of one process into a model that is sharded in any way.

    To be called on every rank, with all of the state_dict on each. Layers that are cut must have its
    patterns: load them into the model before it is cut.
    """
    shards, rest, missing = _Shards(model), dict(state_dict), []
    own = get_model_state_dict(model)
    for key, value in own.items():
        shard = shards.of_values(key, value)
        if shards.is_cut(key):
            rest[key] = value
        elif key not in state_dict:
            missing.append(key)
        elif shard is not None:
            layout, given = shard.layout, rest.pop(key)
            if tuple(given.shape) != (len(layout.col_idx), *layout.block):
                expected = (len(layout.col_idx), *layout.block)
                raise RuntimeError(f"{key} has shape {tuple(given.shape)}; expected {expected}")
            for name, array in (("row_ptr", layout.row_ptr), ("col_idx", layout.col_idx)):
                t = state_dict.get(f"{key.removesuffix('values')}{name}")
                if t is not None and not np.array_equal(t.cpu().numpy(), array):
                    raise RuntimeError(f"{key} has another pattern than the layer was cut by")
    unexpected = [key for key in state_dict if key not in own]
    if missing or unexpected:
        raise RuntimeError(f"Missing keys in state_dict: {missing}. Unexpected keys: {unexpected}.")
    with torch.no_grad():
        for key, value in own.items():
            shard = shards.of_values(key, value)
            if shard is not None:
                local, stored = value.to_local(), torch.from_numpy(shard.stored_by(value))
                given = state_dict[key].to(local.device, local.dtype)
                kept = (stored >= 0).to(local.device)
                local[kept] = given[stored[stored >= 0].to(given.device)]
                local[~kept] = 0
    set_model_state_dict(model, rest, options=StateDictOptions(full_state_dict=True, strict=False))
