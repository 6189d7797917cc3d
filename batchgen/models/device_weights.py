"""Weights as the tensor cores read them: bfloat16 [N, K], on the GPU, straight from the checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from batchgen.kernels.memory import room_for
from batchgen.models.config import ModelConfig, MoeConfig
from batchgen.models.fused import Held, fused
from batchgen.models.weights import Checkpoint, combine_digests


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Names as in models/fused.py; a linear is bf16 [N, K], experts are [slots, N, K], a norm or bias float32 [N].

    To be read, never written, but those of experts, in whose place others may come.
    """

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
    def seeded(cls, config: ModelConfig, device: torch.device, seed: int = 0, held: Held | None = None) -> Self:
        """Random weights of the model's shapes, for benchmarks: their digest says that they are no model's.

        An expert's are the same on whatever rank it is held.
        """
        drawn = _Drawn(device, seed)
        H, D = config.hidden_size, config.head_dim
        qkv = (config.num_heads + 2 * config.num_kv_heads) * D
        tensors = {"embed": drawn.linear(config.vocab_size, H, gain=3.0), "final_norm": drawn.vector(H)}
        if not config.tie_word_embeddings:
            tensors["lm_head"] = drawn.linear(config.vocab_size, H, gain=3.0)
        for i in range(config.num_layers):
            at = f"layers.{i}."
            tensors |= {at + "input_norm": drawn.vector(H), at + "post_norm": drawn.vector(H)}
            tensors |= {at + "qkv": drawn.linear(qkv, H), at + "o": drawn.linear(H, config.num_heads * D)}
            if config.qkv_bias:
                tensors[at + "qkv_bias"] = drawn.vector(qkv, mean=0.0)
            if config.qk_norm:
                tensors |= {at + "q_norm": drawn.vector(D), at + "k_norm": drawn.vector(D)}
            if config.moe is not None and config.is_moe(i):
                tensors |= drawn.experts(at, config.moe, H, i, None if held is None else held[i])
            else:
                tensors |= drawn.mlp(at, config.intermediate_size, H)
        return cls(config, f"seeded {seed}", tensors)


class _Drawn:
    """Draws weights, of a deviation that keeps what goes through them near 1."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device, self._seed = device, seed
        self._generator = torch.Generator(device).manual_seed(seed)
        self._of_experts = torch.Generator(device)

    def linear(self, *shape: int, gain: float = 1.0) -> torch.Tensor:
        """bf16 [..., N, K]."""
        drawn = torch.randn(shape, generator=self._generator, device=self._device, dtype=torch.bfloat16)
        return drawn.mul_(gain / shape[-1] ** 0.5)

    def vector(self, N: int, mean: float = 1.0) -> torch.Tensor:
        """float32 [N]."""
        return torch.randn(N, generator=self._generator, device=self._device).mul_(0.1).add_(mean)

    def mlp(self, at: str, inner: int, H: int) -> dict[str, torch.Tensor]:
        """A gated feed-forward block."""
        return {at + "gate_up": self.linear(2 * inner, H), at + "down": self.linear(H, inner)}

    def experts(
        self, at: str, moe: MoeConfig, H: int, layer: int, held: Sequence[int] | None
    ) -> dict[str, torch.Tensor]:
        """A block of experts. Some are asked for several times as often as others, for their logits spread wider."""
        router = self.linear(moe.num_experts, H, gain=2.0)
        spread = torch.randn(moe.num_experts, 1, generator=self._generator, device=self._device).mul_(0.15).exp_()
        found = {at + "router": router.mul_(spread.to(router.dtype))}
        if moe.has_bias:
            found[at + "router_bias"] = self.vector(moe.num_experts, mean=0.0)
        if moe.shared_size:
            found |= self.mlp(at + "shared_", moe.shared_size, H)
        wanted = range(moe.num_experts) if held is None else held
        shapes = {"experts_gate_up": (2 * moe.inner_size, H), "experts_down": (H, moe.inner_size)}
        for part, (name, shape) in enumerate(shapes.items()):
            stacked = torch.empty(len(wanted), *shape, dtype=torch.bfloat16, device=self._device)
            for slot, expert in enumerate(wanted):
                self._of_experts.manual_seed(((self._seed * 1000 + layer) * 10_000 + expert) * 2 + part)
                stacked[slot].normal_(generator=self._of_experts)
            found[at + name] = stacked.mul_(shape[-1] ** -0.5)
        return found
