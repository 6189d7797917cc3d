"""A feed-forward block of experts: each token goes to a few of them, wherever they are, and to one that all share."""

from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.kernels import PackedExperts, PackedWeight, Routing
from batchgen.layers.mlp import GatedMlp
from batchgen.parallel.exchange import Exchange

Tensor = torch.Tensor


class Moe(NamedTuple):
    """The feed-forward part of one layer. Its experts are those that this rank holds."""

    router: PackedWeight  # [E, H]
    bias: Tensor | None  # float32 [E]
    routing: Routing
    gate_up: PackedExperts  # S of [2 I, H]: gate above up
    down: PackedExperts  # S of [H, I]
    shared: GatedMlp | None

    def __call__(self, x: Tensor, residual: Tensor, exchange: Exchange) -> Tensor:
        """x bf16 [T, H] -> residual + (the weighted sum of each token's experts + the shared one), float32 [T, H].

        Answers come home one by one and are summed there, by ascending expert: where they were made is not seen.
        """
        experts, weights = kernels.route(kernels.linear(x, self.router), self.bias, self.routing)
        rows = kernels.told("experts", self._ask(x, experts, exchange))
        shared = None if self.shared is None else self.shared(x, None)
        return kernels.combine(rows, weights, shared, residual)

    def serve(self, exchange: Exchange) -> None:
        """What a rank without tokens does in this layer: its experts answer the others."""
        device, width = self.down.data.device, self.down.rows
        x = torch.empty(0, width, dtype=torch.bfloat16, device=device)
        self._ask(x, torch.empty(0, self.routing.top_k, dtype=torch.int32, device=device), exchange)

    def _ask(self, x: Tensor, experts: Tensor, exchange: Exchange) -> Tensor:
        arrived = exchange.dispatch(x, experts)
        return exchange.combine(kernels.experts(arrived.x, arrived.pairs, self.gate_up, self.down))
