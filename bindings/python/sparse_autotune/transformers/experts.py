"""The experts of mixtures by products of groups: "sparse_autotune" is one of the implementations of
experts that transformers 5 chooses from::

    import sparse_autotune.transformers
    model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="sparse_autotune")
    model.set_experts_implementation("sparse_autotune")   # or of a model that is there already

The weights stay as they are, and so do checkpoints. Every model whose experts stand under
`use_experts_implementation` is served: with and without gate, bias and transposed weights. Experts in
quantised form are not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._grouped import grouped_matmul
from .._moe import combine, sort_by_expert

try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as error:
    raise ImportError(
        f"sparse_autotune.transformers needs transformers 5, whose experts have implementations: {error}"
    ) from error

__all__ = ["experts_forward"]


def _product(self: torch.nn.Module, x: Tensor, name: str, offsets: Tensor) -> Tensor:
    weight = getattr(self, name)
    bias = getattr(self, f"{name}_bias") if self.has_bias else None
    w = weight if self.is_transposed else weight.transpose(1, 2)
    return grouped_matmul(x.to(weight.dtype), w, offsets, bias=bias)


def experts_forward(
    self: torch.nn.Module,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """What transformers calls as the forward of a module of experts. Entries of `top_k_index` from
    `num_experts` on are those of other ranks, and add nothing."""
    order, offsets = sort_by_expert(top_k_index, self.num_experts)
    rows = torch.div(order, top_k_index.shape[-1], rounding_mode="floor")
    x = hidden_states.index_select(0, rows)
    h = _product(self, x, "gate_up_proj" if self.has_gate else "up_proj", offsets)
    y = _product(self, self._apply_gate(h) if self.has_gate else self.act_fn(h), "down_proj", offsets)
    if self.has_post_expert_norm:
        y = self.post_expert_norm(y)
    return combine(y, top_k_weights, order).to(hidden_states.dtype)


ALL_EXPERTS_FUNCTIONS.register("sparse_autotune", experts_forward)
