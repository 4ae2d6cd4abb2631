"""Which layers of a model become sparse, and the report of it; `nn.sparsify` and checkpoints use this."""

from __future__ import annotations

import copy
import fnmatch
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ._torch import private

# Layers that compute x @ W.T + bias, by the names of their classes, since nobody need have imported them, and
# whether they store W transposed. Any other subclass of nn.Linear may compute something else.
_STORED_TRANSPOSED = {
    "torch.nn.modules.linear.Linear": False,
    "transformers.models.falcon.modeling_falcon.FalconLinear": False,
    "transformers.pytorch_utils.Conv1D": True,
}
# Modules whose weights are no matrices of a product.
_OTHERS = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd, nn.LayerNorm)

ASKED = "not in include", "in exclude"  # reasons that no user wonders about


def is_linear(layer: Any) -> bool:
    """Whether this is known to compute x @ W.T + bias."""
    kind = type(layer)
    return f"{kind.__module__}.{kind.__qualname__}" in _STORED_TRANSPOSED


def stores_transposed(layer: nn.Module) -> bool:
    kind = type(layer)
    return _STORED_TRANSPOSED.get(f"{kind.__module__}.{kind.__qualname__}", False)


def weight_of(layer: Any) -> Tensor:
    """The weight of a linear layer, of shape (out, in)."""
    return layer.weight.T if stores_transposed(layer) else layer.weight


@dataclass
class SparsifyReport:
    """What `sparsify` did with a model. `replaced` has the new layers by name, `left` the reason why for each
    layer that stayed dense. As text it is a table."""

    replaced: dict[str, nn.Module] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} layers are sparse, {len(self.left)} are left dense"]
        rows = [(name, _summary(layer)) for name, layer in self.replaced.items()]
        rows += [(name, f"left: {why}") for name, why in self.left.items()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(lines + [f"{name:<{width}}  {what}" for name, what in rows])


def _summary(layer: Any) -> str:
    return (
        f"{layer.out_features}x{layer.in_features} in blocks of {layer.block[0]}x{layer.block[1]}, "
        f"{layer.col_idx.shape[0]} stored, density {layer.density:.3g}"
    )


def chooser(given: Any, name: str, default: bool) -> Callable[[str, nn.Module], bool]:
    """A function of name and layer from one, or from names that may hold ``*``."""
    if given is None:
        return lambda name, layer: default
    if callable(given):
        return given
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(n, str) for n in names):
        raise TypeError(f"{name} is {given!r}; expected a name, names, or a function of name and layer")
    return lambda name, layer: any(fnmatch.fnmatchcase(name, n) for n in names)


@dataclass
class Rules:
    """What `sparsify` is asked for."""

    block: tuple[int, int]
    smallest: int
    included: Callable[[str, nn.Module], bool]
    excluded: Callable[[str, nn.Module], bool]

    def why_not(self, name: str, layer: nn.Module) -> str:
        """Why a linear layer stays dense; "" where it does not."""
        rows, cols = weight_of(layer).shape
        if rows < self.smallest * self.block[0] or cols < self.smallest * self.block[1]:
            least = f"{self.smallest * self.block[0]}x{self.smallest * self.block[1]}"
            return f"{rows}x{cols} is smaller than {least}, the smallest that is asked for"
        if not self.included(name, layer):
            return ASKED[0]
        return ASKED[1] if self.excluded(name, layer) else ""


class Plan:
    """The layers of a model that become sparse (`chosen`, with their first names), all places where they
    stand, and the reasons for the others (`left`)."""

    def __init__(self, model: nn.Module, rules: Rules):
        self.model, self.chosen, self.left = model, {}, {}
        self.places = [
            (f"{path}.{name}" if path else name, module, name)
            for path, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)
            for name in private.submodules(module)
        ]
        for full, module, name in [*self.places, *self._model_itself()]:
            child = model if module is None else private.submodules(module)[name]
            if child is None or child in self.chosen:
                continue
            why = self._judge(full, child, rules)
            if why == "":
                self.chosen[child] = full  # one that stands in several places stays one layer
            elif why is not None:
                self.left[full] = why
        self._leave_shared()
        kept = {id(child) for child in self.chosen}
        for full, module, name in self.places:
            if id(private.submodules(module)[name]) in kept:
                self.left.pop(full, None)

    def _model_itself(self) -> list[tuple[str, None, str]]:
        return [("", None, "")] if is_linear(self.model) or isinstance(self.model, nn.Linear) else []

    def _judge(self, name: str, layer: nn.Module, rules: Rules) -> str | None:
        """Why it is left, "" where it is chosen, None where it has no weight to speak of."""
        if is_linear(layer):
            return rules.why_not(name, layer)
        kind = type(layer).__name__
        if isinstance(layer, nn.Linear):
            return f"{kind} is a subclass of nn.Linear and may compute in a way of its own"
        if isinstance(layer, torch.jit.ScriptModule):
            return "compiled by torch.jit"
        if isinstance(layer, _OTHERS):
            return None
        for part, p in private.parameters(layer).items():
            large = p is not None and not nn.parameter.is_lazy(p) and p.dim() >= 2
            if large and p.is_floating_point() and all(a >= b for a, b in zip(p.shape[-2:], rules.block)):
                if not hasattr(layer, "row_ptr"):  # as a SparseLinear has it
                    return f"{kind} holds {part} of shape {tuple(p.shape)} itself, not in a linear layer"
        return None

    def _leave_shared(self) -> None:
        """One that shares its weight with anything that is not chosen stays dense."""
        self.uses, holders = Counter(), {}
        for path, module in self.model.named_modules():
            for p in private.parameters(module).values():
                if p is not None:
                    self.uses[id(p)] += 1
                    if module not in self.chosen:
                        holders.setdefault(id(p), path)
        for layer, name in list(self.chosen.items()):
            if id(layer.weight) in holders:
                del self.chosen[layer]
                self.left[name] = f"shares its weight with {holders[id(layer.weight)] or 'the model'}"

    def replace(self, make: Callable[[nn.Module], Any]) -> SparsifyReport:
        """Puts what `make` returns in the place of each chosen layer. What they share, their layers share."""
        first: dict[int, Any] = {}
        made: dict[nn.Module, Any] = {}
        for linear in self.chosen:
            layer = made[linear] = make(linear)
            twin = first.setdefault(id(linear.weight), layer)
            if twin is not layer:
                layer.values, layer.row_ptr, layer.col_idx, layer._pattern = (
                    twin.values,
                    twin.row_ptr,
                    twin.col_idx,
                    twin.pattern(),
                )
            if self.uses[id(linear.bias)] > 1:
                layer.bias = linear.bias
            take_hooks(layer, linear)
        for linear, layer in made.items():
            self.put(linear, layer)
        return SparsifyReport({self.chosen[linear]: layer for linear, layer in made.items()}, self.left)

    def put(self, linear: nn.Module, layer: nn.Module) -> None:
        """The layer in all places of the other."""
        for _, module, name in self.places:
            if private.submodules(module).get(name) is linear:
                setattr(module, name, layer)


def take_hooks(layer: nn.Module, linear: nn.Module) -> None:
    """The dicts themselves, which the hooks' handles know. Pre-hooks that compute the weight (pruning, norms)
    would find none here."""
    own = {"weight", "bias"} <= private.parameters(linear).keys()
    for name in private.hook_names(pre_hooks=own):
        layer.__dict__[name], linear.__dict__[name] = linear.__dict__[name], copy.copy(linear.__dict__[name])


def leave_fast_path(model: nn.Module, kind: type) -> None:
    """torch's encoders hand dense weights to one fused kernel when they do not train. These call their
    layers, as in training."""
    for module in model.modules():
        if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerEncoder)) and any(
            isinstance(m, kind) for m in module.modules()
        ):
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0  # read for nothing but this
            else:
                module.use_nested_tensor = False


def tell_transformers(model: nn.Module) -> None:
    """So that `save_pretrained` of a model of transformers writes what `from_pretrained` can read."""
    utils = sys.modules.get("transformers.modeling_utils")
    if utils is None or not isinstance(model, utils.PreTrainedModel):
        return
    try:
        from .transformers import mark

        mark(model)
    except (ImportError, ValueError) as error:  # an old transformers; another quantizer
        warnings.warn(f"save_pretrained cannot save the sparse layers: {error}", stacklevel=3)
