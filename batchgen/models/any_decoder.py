"""What the engine asks of a decoder, whatever profile it computes."""

from typing import Any, Protocol, TypeAlias

import torch

from batchgen.layers.step import StepTensors
from batchgen.models.config import ModelConfig
from batchgen.models.weights import Checkpoint

Cache: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # keys and values of one layer, laid out as the decoder likes


class AnyDecoder(Protocol):
    """Token ids in, logits out. It launches the ops of models/op_names.py, in their order."""

    config: ModelConfig
    device: torch.device
    layers: Any  # a list of what the decoder calls a layer

    def forward(self, step: StepTensors, cache: list[Cache]) -> torch.Tensor:
        """Logits float32 [R, V] of the step's `sample_rows`, good until the next call; keys and values to `cache`."""

    def idle(self) -> None:
        """What a rank that has no token does in a step of the others: its experts answer them."""

    def end_of_step(self) -> None:
        """Between two steps, on all ranks: experts may move."""

    def replace_weights(self, model: Checkpoint) -> str:
        """Go on with the weights of `model`, which has this config, in place; the new weights digest."""

    def new_cache(self, num_blocks: int) -> list[Cache]:
        """A cache of so many blocks for each layer. Raises EngineError when there is no memory for it."""
