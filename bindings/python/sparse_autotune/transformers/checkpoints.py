"""Sparse checkpoints: a quantizer of transformers that keeps the largest blocks of linear layers.

`from_pretrained(..., quantization_config=SparseAutotuneConfig(...))` makes a dense checkpoint sparse, one
layer at a time, while it is read. `save_pretrained` writes the blocks, and `from_pretrained` reads them back.

A saved layer has `values`, `row_ptr`, `col_idx`, its bias, and `weight`, which holds the two sides of the
dense weight. A class that takes the layer for a dense one finds that `weight` has another shape, and raises,
instead of drawing random weights for those that it does not find.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import ConversionOps, PrefixChange, WeightConverter, WeightTransform
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from .. import _sparsify
from .._matrix import check_block
from .._torch import private
from ..nn import SparseLinear, _check_density, _check_features

__all__ = ["SparseAutotuneConfig", "SparseAutotuneQuantizer", "mark"]

logger = logging.get_logger(__name__)

# transformers warns of a method that it does not know by this name: it is what to import.
METHOD = "sparse_autotune.transformers"

_PARTS = ("values", "row_ptr", "col_idx")


def _names(given: Any, name: str) -> list[str] | None:
    if given is None:
        return None
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(n, str) for n in names):
        raise TypeError(f"{name} is {given!r}; expected a name or names, which a checkpoint can hold")
    return names


@register_quantization_config(METHOD)
class SparseAutotuneConfig(QuantizationConfigMixin):
    """What `from_pretrained` keeps of a dense checkpoint's linear layers.

    `block`, `density`, `threshold` and `smallest` are those of `sparse_autotune.sparsify`; `include` and
    `exclude` are names, which may hold ``*``. By default `exclude` is the output head, as for other
    quantizers of transformers; ``exclude=[]`` takes the head too, unless it shares its weight.

    `layers` is what a saved checkpoint says of each sparse layer. It is written by `save_pretrained`.

    >>> from sparse_autotune.transformers import SparseAutotuneConfig
    >>> SparseAutotuneConfig(block=32, density=0.25, include="*.mlp.*").include
    ['*.mlp.*']
    """

    def __init__(
        self,
        block: Any = (64, 64),
        density: float = 0.125,
        threshold: float | None = None,
        include: Iterable[str] | str | None = None,
        exclude: Iterable[str] | str | None = None,
        smallest: int = 1,
        layers: dict[str, dict] | None = None,
        quant_method: str = METHOD,
    ):
        if quant_method != METHOD:
            raise ValueError(f"quant_method is {quant_method!r}; expected {METHOD!r}")
        self.quant_method = METHOD
        self.block, self.density = list(check_block(block)), _check_density(density)
        self.threshold, self.smallest = threshold, _check_features(smallest, "smallest")
        self.include, self.exclude = _names(include, "include"), _names(exclude, "exclude")
        self.layers = layers


# ---- the layers of a model ----


def _sparse_layers(model: nn.Module) -> dict[str, SparseLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, SparseLinear)}


def _describe(model: nn.Module) -> dict[str, dict]:
    """Of each sparse layer what is needed to build it before its tensors are read."""
    found = {}
    for name, layer in _sparse_layers(model).items():
        found[name] = {"block": list(layer.block), "stored_blocks": layer.col_idx.shape[0]}
        if layer.activation is not None:
            found[name]["activation"] = layer.activation
    return found


def _submodule(model: PreTrainedModel, name: str) -> tuple[str, nn.Module | None]:
    """A saved layer in this class: one with a head has a prefix that the model without one lacks."""
    prefix = f"{model.base_model_prefix}."
    for path in (name, name.removeprefix(prefix), prefix + name):
        try:
            return path, model.get_submodule(path)
        except AttributeError:
            continue
    return name, None


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """The new module in all places of the old one."""
    for parent in list(model.modules()):
        for name in [name for name, module in private.submodules(parent).items() if module is old]:
            setattr(parent, name, new)


def _without_memory(linear: nn.Module, entry: dict) -> SparseLinear:
    """A layer on meta for the tensors that a checkpoint has."""
    rows, cols = _sparsify.weight_of(linear).shape
    block, stored, dtype = check_block(entry["block"]), entry["stored_blocks"], linear.weight.dtype
    grid = math.prod(-(-size // side) for size, side in zip((rows, cols), block))
    if not 0 <= stored <= grid:
        raise ValueError(f"stored_blocks is {stored}; expected 0 to {grid} for a weight of {rows}x{cols}")
    layer = SparseLinear(cols, rows, block, 0.0, False, entry.get("activation"), "meta", dtype)
    layer.values = nn.Parameter(torch.empty(stored, *block, device="meta", dtype=dtype))
    layer.col_idx = torch.empty(stored, device="meta", dtype=torch.int32)
    layer.bias = linear.bias
    _sparsify.take_hooks(layer, linear)
    return layer


def _save_unfused(model: PreTrainedModel, layers: dict[str, SparseLinear]) -> None:
    """Some models are saved with q, k and v in one tensor, which blocks cannot be: here they are saved by the
    names that they have in memory, which transformers reads too."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None:  # not from a checkpoint; without prefixes, as revert_weight_conversion takes them
        conversions = get_model_conversion_mapping(model, add_legacy=False)
        conversions = [c for c in conversions if not isinstance(c, PrefixChange)]
    names = [f"{name}.{part}" for name in layers for part in (*_PARTS, "weight", "bias")]

    def fuses(conversion: WeightTransform) -> bool:
        if not isinstance(conversion, WeightConverter):
            return False
        reverse = conversion.reverse_transform()
        return any(reverse.rename_source_key(name)[1] is not None for name in names)

    model._weight_conversions = [c for c in conversions if not fuses(c)]  # None would be all of them


# ---- the quantizer ----


class _KeepBlocks(ConversionOps):
    """Makes a layer sparse when its dense weight has been read; the weight goes then."""

    def __init__(self, quantizer: SparseAutotuneQuantizer):
        self.quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        missing_keys: set[str] | None = None,
        **_words: Any,
    ) -> dict[str, Any]:
        rest = {}
        for name, tensors in input_dict.items():
            tensor = tensors[0] if isinstance(tensors, list) else tensors
            if not self.quantizer.take(name, tensor):
                rest[name] = tensors
            elif missing_keys is not None:
                missing_keys.discard(name)
        return rest


@register_quantizer(METHOD)
class SparseAutotuneQuantizer(HfQuantizer):
    """What transformers calls while it loads and saves; `report` says what became sparse."""

    quantization_config: SparseAutotuneConfig
    requires_calibration = False

    def __init__(self, quantization_config: SparseAutotuneConfig, **words: Any):
        super().__init__(quantization_config, **words)
        self.report: _sparsify.SparsifyReport | None = None
        self._plan: _sparsify.Plan | None = None
        self._waiting: dict[str, nn.Module] = {}  # dense layers by the names of their weights

    def validate_environment(self, *_arguments: Any, device_map: Any = None, **_words: Any) -> None:
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise ValueError(
                "device_map has layers on the disk; expected devices, since blocks stay in memory"
            )

    # ---- before the weights are read: the model is on meta ----

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_words: Any) -> None:
        if self.pre_quantized:
            self._build(model)
        else:
            self._choose(model)

    def _build(self, model: PreTrainedModel) -> None:
        layers = self.quantization_config.layers
        if not layers:
            raise ValueError("quantization_config has no layers; expected a checkpoint of save_pretrained")
        places = {name: _submodule(model, name) for name in layers}
        absent = [name for name, (_, module) in places.items() if module is None]
        if len(absent) == len(layers):
            raise ValueError(
                f"{type(model).__name__} has none of the {len(layers)} sparse layers of this checkpoint, as "
                f"{absent[0]}; expected a class of the same architecture"
            )
        if absent:
            logger.warning(f"{type(model).__name__} is without these layers of the checkpoint: {absent}")
        ignored, prefix = set(model._keys_to_ignore_on_load_unexpected or ()), f"{model.base_model_prefix}."
        for name, (path, module) in places.items():
            # the sides of the dense weight
            ignored.add(rf"^({re.escape(prefix)})?{re.escape(name.removeprefix(prefix))}\.weight$")
            if module is None:
                continue
            if not _sparsify.is_linear(module):
                raise ValueError(f"{path} is a {type(module).__name__}; expected a linear layer")
            try:
                _put(model, module, _without_memory(module, layers[name]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"quantization_config.layers[{name!r}]: {error}") from None
        model._keys_to_ignore_on_load_unexpected = ignored

    def _choose(self, model: PreTrainedModel) -> None:
        config = self.quantization_config
        tied = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
        head = model.get_output_embeddings()
        by_name = _sparsify.chooser(config.exclude, "exclude", False)
        rules = _sparsify.Rules(
            check_block(config.block),
            config.smallest,
            _sparsify.chooser(config.include, "include", True),
            lambda name, layer: by_name(name, layer) or (config.exclude is None and layer is head),
        )
        self._plan = plan = _sparsify.Plan(model, rules)
        for layer, name in list(plan.chosen.items()):
            if f"{name}.weight" in tied:  # on meta the weights are two still
                del plan.chosen[layer]
                plan.left[name] = "shares its weight with another"
        for full, module, name in plan.places:
            if getattr(module, name) in plan.chosen:
                self._waiting[f"{full}.weight"] = getattr(module, name)

    # ---- while they are read ----

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **_words: Any) -> bool:
        return param_name in self._waiting

    def param_element_size(self, model: PreTrainedModel, param_name: str, param: Tensor) -> float:
        size = super().param_element_size(model, param_name, param)
        sparse = param_name in self._waiting and self.quantization_config.threshold is None
        return size * self.quantization_config.density if sparse else size

    def get_quantize_ops(self) -> _KeepBlocks:
        return _KeepBlocks(self)

    def take(self, name: str, weight: Tensor) -> bool:
        """Whether this is the weight of a chosen layer, which is sparse then."""
        linear = self._waiting.pop(name, None)
        if linear is None or weight.shape != linear.weight.shape:  # transformers knows what to do with both
            return False
        if linear in self._plan.chosen:
            layer = self._sparse(linear, weight)
            for part in _PARTS:
                getattr(layer, part)._is_hf_initialized = True  # as transformers marks what it has read
        return True

    def _sparse(self, linear: nn.Module, weight: Tensor) -> SparseLinear:
        config = self.quantization_config
        layer = SparseLinear._from_weight(linear, weight, config.block, config.density, config.threshold)
        layer.bias = linear.bias
        self._plan.put(linear, layer)
        _sparsify.take_hooks(layer, linear)
        self.report = self.report or _sparsify.SparsifyReport({}, self._plan.left)
        self.report.replaced[self._plan.chosen.pop(linear)] = layer
        return layer

    # ---- after they are read ----

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_words: Any) -> PreTrainedModel:
        if self.pre_quantized:
            self._verify(model)
        else:
            for linear in list(self._plan.chosen):  # new ones, and those that transformers put together
                self._sparse(linear, linear.weight.detach())
            self._finish(model)
        self._plan, self._waiting = None, {}
        # Nothing is said of numbers, so half(), float() and training are what they always are.
        model.is_quantized = False
        return model

    def _finish(self, model: PreTrainedModel) -> None:
        self.report = self.report or _sparsify.SparsifyReport({}, self._plan.left)
        if not self.report.replaced:
            raise ValueError(f"no layer was made sparse: {self.report}")
        self.quantization_config.layers = _describe(model)
        logger.info(str(self.report))

    def _verify(self, model: PreTrainedModel) -> None:
        for name, layer in _sparse_layers(model).items():
            lost = [part for part in _PARTS if not getattr(getattr(layer, part), "_is_hf_initialized", False)]
            if lost:
                raise ValueError(
                    f"the checkpoint has no {' and '.join(lost)} of {name}; expected all of them"
                )
            try:
                layer.pattern()
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    # ---- saving, and back to dense ----

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Tensor], dict]:
        layers, state = _sparse_layers(model), model.state_dict()
        self.quantization_config.layers = _describe(model)
        model.config.quantization_config = self.quantization_config
        owner: dict[int, str] = {}
        for name, layer in layers.items():
            first = owner.setdefault(id(layer.values), name)
            if first != name:
                raise ValueError(
                    f"{name} shares its values with {first}, which a checkpoint cannot say; expected "
                    "values of its own"
                )
            state[f"{name}.weight"] = torch.tensor([layer.out_features, layer.in_features])
        _save_unfused(model, layers)
        return state, {}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return True

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        with torch.device("meta"):
            dense = type(model)(model.config)
        for name, layer in _sparse_layers(model).items():
            linear, weight = dense.get_submodule(name), layer.to_dense().weight
            weight = weight.T.contiguous() if _sparsify.stores_transposed(linear) else weight
            linear.weight = nn.Parameter(weight.detach().to(dtype), layer.values.requires_grad)
            linear.bias = layer.bias
            _put(model, layer, linear.train(layer.training))
        return model


def mark(model: PreTrainedModel) -> PreTrainedModel:
    """Says that a model has sparse layers, so that `save_pretrained` writes a checkpoint that is read back as
    it is; returns the model. `from_pretrained` does so by itself, and `sparse_autotune.sparsify` with the
    model that it is given. This is for layers that were put into a model by hand, and for a model a part of
    which was given to `sparsify`.

    >>> import sparse_autotune as sa, sparse_autotune.transformers
    >>> from transformers import LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 50}
    >>> model = LlamaModel(LlamaConfig(**sizes, num_hidden_layers=1))
    >>> model.layers[0].mlp.up_proj = sa.SparseLinear.from_dense(model.layers[0].mlp.up_proj, block=16)
    >>> list(sa.transformers.mark(model).config.quantization_config.layers)
    ['layers.0.mlp.up_proj']
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model is a {type(model).__name__}; expected a transformers.PreTrainedModel")
    other = getattr(model, "hf_quantizer", None)
    if other is not None and not isinstance(other, SparseAutotuneQuantizer):
        raise ValueError(
            f"model is quantized by {type(other).__name__} already; expected a model that is not"
        )
    if not _sparse_layers(model):
        raise ValueError("model has no SparseLinear; expected one at least")
    if other is None:
        model.hf_quantizer = SparseAutotuneQuantizer(SparseAutotuneConfig(), pre_quantized=True)
        model.quantization_method = METHOD
    config = model.hf_quantizer.quantization_config
    config.layers = _describe(model)
    model.config.quantization_config = config
    return model
