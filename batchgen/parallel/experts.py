"""ExpertParallel: where the experts of every layer are, and how a layer reaches them."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from batchgen.parallel.exchange import Exchange, LocalExchange


class ExpertParallel:
    """The experts of a model over the ranks of a mesh."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts = num_experts
        self._local = LocalExchange()

    @classmethod
    def alone(cls, num_experts: int) -> Self:
        """One rank, which holds every expert in its own order."""
        return cls(num_experts)

    def exchange(self, layer: int) -> Exchange:
        """How `layer` reaches its experts."""
        return self._local

    def slots(self, layer: int) -> tuple[int, ...]:
        """The logical ids of the experts that this rank holds in `layer`, by local slot."""
        return tuple(range(self._num_experts))

    def end_of_step(self, weights: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Between two steps, on every rank: move experts, when it is time to.

        `weights`: for each MoE layer its tensors stacked by local slot, [slots, ...], written in place.
        """
