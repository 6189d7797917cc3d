"""Weights as the tensor cores read them: bfloat16 [N, K], on the GPU, straight from the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch

from batchgen.kernels.memory import room_for
from batchgen.models.config import ModelConfig
from batchgen.models.fused import Held, fused
from batchgen.models.weights import Checkpoint, combine_digests


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Names as in models/fused.py; a linear is bf16 [N, K], a norm or bias float32 [N]. To be read, never written."""

    config: ModelConfig
    weights_digest: str
    tensors: Mapping[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    @classmethod
    def load(cls, model: Checkpoint, device: torch.device, held: Held | None = None) -> Self:
        """Every tensor of `model`, one on the host at a time; of the experts those that are `held`, None: all.

        Raises ModelError, EngineError when memory runs out.
        """
        digests: dict[str, str] = {}
        with room_for("the weights"):
            tensors = {name: tensor.to(device) for name, tensor in fused(model, digests, lambda weight: weight, held)}
        return cls(model.config, combine_digests(model.config, digests), tensors)

    @classmethod
    def seeded(cls, config: ModelConfig, device: torch.device, seed: int = 0) -> Self:
        """Random weights of the model's shapes, for benchmarks: their digest says that they are no model's."""
        generator = torch.Generator(device).manual_seed(seed)
        H, D, inner = config.hidden_size, config.head_dim, config.intermediate_size
        qkv = (config.num_heads + 2 * config.num_kv_heads) * D

        def linear(N: int, K: int, gain: float = 1.0) -> torch.Tensor:
            drawn = torch.randn(N, K, generator=generator, device=device, dtype=torch.bfloat16)
            return drawn.mul_(gain / K**0.5)

        def vector(N: int, mean: float = 1.0) -> torch.Tensor:
            return torch.randn(N, generator=generator, device=device).mul_(0.1).add_(mean)

        tensors = {"embed": linear(config.vocab_size, H, 3.0), "final_norm": vector(H)}
        if not config.tie_word_embeddings:
            tensors["lm_head"] = linear(config.vocab_size, H, 3.0)
        for i in range(config.num_layers):
            at = f"layers.{i}."
            tensors |= {at + "input_norm": vector(H), at + "post_norm": vector(H), at + "qkv": linear(qkv, H)}
            tensors |= {at + "o": linear(H, config.num_heads * D), at + "down": linear(H, inner)}
            tensors[at + "gate_up"] = linear(2 * inner, H)
            if config.qkv_bias:
                tensors[at + "qkv_bias"] = vector(qkv, 0.0)
            if config.qk_norm:
                tensors |= {at + "q_norm": vector(D), at + "k_norm": vector(D)}
        return cls(config, f"seeded {seed}", tensors)
