"""Mixtures of experts by products of groups: every token goes to its experts, and none is dropped."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor, nn

from ._grouped import grouped_matmul
from ._torch.eager import ACTIVATIONS
from ._torch.operators import autocasts


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Order of the entries of `chosen`, (tokens, k), by expert and then by token, and the offsets of the
    experts in it. Numbers from `experts` on are nobody's: they come last, behind the last group."""
    flat = chosen.reshape(-1)
    sorted_experts, order = flat.sort(stable=True)
    first = torch.arange(experts + 1, device=flat.device, dtype=flat.dtype)
    return order, torch.searchsorted(sorted_experts, first)


def combine(y: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """The sum over each token's experts of their rows of y times `weights`, (tokens, k). Every row has one
    reader, so that the sum does not depend on timing."""
    y = y * weights.reshape(-1)[order].to(y.dtype).unsqueeze(-1)
    back = torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))
    return y.index_select(0, back).reshape(*weights.shape, y.shape[-1]).sum(1)


class MoE(nn.Module):
    """A mixture of gated MLPs: ``sum of weight * down(act(gate(x)) * up(x))`` over the top_k experts of each
    token, all tokens of an expert in one product of its group. No token is dropped.

    ``router`` is a linear layer whose scores are computed in float32, whatever the parameters are. `gate_up`
    is (experts, 2 * hidden, features), the rows of gate before those of up, and `down` is (experts, features,
    hidden): as Hugging Face's transformers has them.

    - ``scores``: "softmax" over all experts, or "sigmoid" of each.
    - ``renormalise``: the weights of the chosen experts are divided by their sum, and then multiplied by
      ``scale``.
    - ``shared``: hidden size of one more expert that every token passes; 0: none.
    - ``activation``: "silu", "gelu" or "relu".

    >>> import torch, sparse_autotune as sa
    >>> layer = sa.nn.MoE(64, 32, experts=8, top_k=2)
    >>> layer(torch.ones(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    >>> layer
    MoE(
      features=64, hidden=32, experts=8, top_k=2, scores='softmax', renormalise=True
      (router): Linear(in_features=64, out_features=8, bias=False)
    )
    """

    _spread = None  # where `distributed.ExpertParallel` has put the experts on several ranks

    def __init__(
        self,
        features: int,
        hidden: int,
        experts: int,
        top_k: int = 2,
        *,
        scores: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        shared: int = 0,
        activation: str = "silu",
        device=None,
        dtype=None,
    ):
        super().__init__()
        sizes = {"features": features, "hidden": hidden, "experts": experts, "top_k": top_k}
        for name, size in sizes.items():
            if type(size) is not int:
                raise TypeError(f"{name} is {size!r}; expected a whole number")
            if size < 1:
                raise ValueError(f"{name} is {size}; expected at least 1")
        if top_k > experts:
            raise ValueError(f"top_k is {top_k}; expected at most {experts}, the number of experts")
        if scores not in ("softmax", "sigmoid"):
            raise ValueError(f"scores is {scores!r}; expected 'softmax' or 'sigmoid'")
        if activation not in ("silu", "gelu", "relu"):
            raise ValueError(f"activation is {activation!r}; expected 'silu', 'gelu' or 'relu'")
        if type(shared) is not int:
            raise TypeError(f"shared is {shared!r}; expected a whole number")
        if shared < 0:
            raise ValueError(f"shared is {shared}; expected at least 0")
        self.features, self.hidden, self.experts, self.top_k = features, hidden, experts, top_k
        self.scores, self.renormalise, self.scale = scores, bool(renormalise), float(scale)
        self.activation = activation
        kind = {"device": device, "dtype": dtype}
        self.router = nn.Linear(features, experts, bias=False, **kind)
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * hidden, features, **kind))
        self.down = nn.Parameter(torch.empty(experts, features, hidden, **kind))
        self.shared_gate_up = nn.Linear(features, 2 * shared, bias=False, **kind) if shared else None
        self.shared_down = nn.Linear(shared, features, bias=False, **kind) if shared else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As nn.Linear does it, for each expert."""
        for layer in (self.router, self.shared_gate_up, self.shared_down):
            if layer is not None:
                layer.reset_parameters()
        for t in (self.gate_up, self.down):
            nn.init.uniform_(t, -1 / math.sqrt(t.shape[2]), 1 / math.sqrt(t.shape[2]))

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of x, (tokens, features): the weights and numbers of each token's experts, both (tokens, top_k),
        and all logits, (tokens, experts), for a loss that balances experts."""
        kind = torch.promote_types(x.dtype, torch.float32)
        exact = torch.autocast(x.device.type, enabled=False) if autocasts(x) else contextlib.nullcontext()
        with exact:
            logits = nn.functional.linear(x.to(kind), self.router.weight.to(kind))
            scores = logits.softmax(-1) if self.scores == "softmax" else logits.sigmoid()
            weights, chosen = scores.topk(self.top_k, -1)
            if self.renormalise:
                # sigmoids may all be 0
                weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-20)
            return weights * self.scale, chosen, logits

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.features:
            raise ValueError(f"x has {x.shape[-1]} columns; expected {self.features}")
        tokens = x.reshape(-1, self.features)
        weights, chosen, _ = self.route(tokens)
        order, offsets = sort_by_expert(chosen, self.experts)
        rows = tokens.index_select(0, torch.div(order, self.top_k, rounding_mode="floor"))
        if self._spread is None:
            y = self.through_experts(rows, offsets, self.gate_up, self.down)
        else:
            y = self._spread(self, rows, offsets)
        y = combine(y, weights, order)
        if self.shared_gate_up is not None:
            y = y + self.shared_down(self._gated(self.shared_gate_up(tokens)))
        return y.reshape(x.shape)

    def through_experts(self, rows: Tensor, offsets: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """Rows that are sorted by expert, each through the matrices of its own."""
        h = self._gated(grouped_matmul(rows, gate_up.transpose(1, 2), offsets))
        return grouped_matmul(h, down.transpose(1, 2), offsets)

    def _gated(self, h: Tensor) -> Tensor:
        gate, up = h.chunk(2, -1)
        return ACTIVATIONS[self.activation](gate) * up

    def extra_repr(self) -> str:
        words = (
            f"features={self.features}, hidden={self.hidden}, experts={self.experts}, top_k={self.top_k}, "
            f"scores={self.scores!r}, renormalise={self.renormalise}"
        )
        words += f", scale={self.scale}" if self.scale != 1 else ""
        return words + (f", activation={self.activation!r}" if self.activation != "silu" else "")
