"""A model's tensors as its decoder wants them: those that are multiplied at once joined, under short names.

Linears are laid out by the caller, [N, K] before. Norms and biases are float32 [N]. Names, for layer i:

    embed                   token table, and the head too when the embeddings are tied
    layers.{i}.qkv          q, k and v along N          layers.{i}.qkv_bias (Qwen2)
    layers.{i}.q_norm, layers.{i}.k_norm (Qwen3)        layers.{i}.o
    layers.{i}.gate_up      gate and up along N         layers.{i}.down
    layers.{i}.input_norm, layers.{i}.post_norm         final_norm
    lm_head                 only when it is not tied

and in a layer with experts, in place of gate_up and down:

    layers.{i}.router       [E, H]                      layers.{i}.router_bias (Dots1), float32 [E]
    layers.{i}.experts_gate_up, layers.{i}.experts_down, one expert after the other along a first dimension
    layers.{i}.shared_gate_up, layers.{i}.shared_down, of the expert of every token, where there is one
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from batchgen.models.weights import EMBEDDING, LM_HEAD, ROUTER_BIAS, Checkpoint, tensor_digest

STACKED = ("experts_gate_up", "experts_down")  # whose first dimension counts experts

Tensor: TypeAlias = torch.Tensor
Layout: TypeAlias = Callable[[Tensor], Tensor]
Named: TypeAlias = Iterator[tuple[str, Tensor]]
Held: TypeAlias = Mapping[int, Sequence[int]]  # of each layer with experts the ids of those that are wanted, by slot


def fused(model: Checkpoint, digests: dict[str, str], layout: Layout, held: Held | None = None) -> Named:
    """Every tensor under its name above, one in memory at a time, linears by `layout` of bf16 [N, K].

    Fills in the digest of each tensor of the model. `held`: experts that are yielded, None: all; all are read.
    """
    config, of = model.config, _Reader(model, digests, layout)
    yield "embed", of.linear(EMBEDDING)
    for i in range(config.num_layers):
        to, layer = f"layers.{i}.", f"model.layers.{i}."
        attention = layer + "self_attn."
        qkv = [f"{attention}{part}_proj" for part in "qkv"]
        yield to + "input_norm", of.vector(layer + "input_layernorm.weight")
        yield to + "qkv", of.linear(*(f"{name}.weight" for name in qkv))
        if config.qkv_bias:
            yield to + "qkv_bias", of.vector(*(f"{name}.bias" for name in qkv))
        if config.qk_norm:
            yield to + "q_norm", of.vector(attention + "q_norm.weight")
            yield to + "k_norm", of.vector(attention + "k_norm.weight")
        yield to + "o", of.linear(attention + "o_proj.weight")
        yield to + "post_norm", of.vector(layer + "post_attention_layernorm.weight")
        if config.is_moe(i):
            yield from of.experts(to, layer + "mlp.", None if held is None else held[i])
        else:
            yield to + "gate_up", of.linear(layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight")
            yield to + "down", of.linear(layer + "mlp.down_proj.weight")
    yield "final_norm", of.vector("model.norm.weight")
    if not config.tie_word_embeddings:
        yield "lm_head", of.linear(LM_HEAD)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes tensors, notes their digests and joins them."""

    model: Checkpoint
    digests: dict[str, str]
    layout: Layout

    def take(self, name: str) -> Tensor:
        tensor = self.model.tensor(name)
        self.digests[name] = tensor_digest(tensor)
        return tensor

    def linear(self, *names: str) -> Tensor:
        return self.layout(torch.cat([self.take(name) for name in names]))

    def vector(self, *names: str) -> Tensor:
        return torch.cat([self.take(name) for name in names]).float()

    def experts(self, to: str, mlp: str, held: Sequence[int] | None) -> Named:
        """The feed-forward part of a layer that has experts."""
        moe = self.model.config.moe
        assert moe is not None
        wanted = range(moe.num_experts) if held is None else held
        yield to + "router", self.linear(mlp + "gate.weight")
        if moe.has_bias:
            yield to + "router_bias", self.vector(mlp + ROUTER_BIAS)
        yield to + "experts_gate_up", self._stacked(mlp, ("gate", "up"), moe.num_experts, wanted)
        yield to + "experts_down", self._stacked(mlp, ("down",), moe.num_experts, wanted)
        if moe.shared_size:
            shared = [f"{mlp}shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")]
            yield to + "shared_gate_up", self.linear(*shared[:2])
            yield to + "shared_down", self.linear(shared[2])

    def _stacked(self, mlp: str, names: Sequence[str], count: int, wanted: Sequence[int]) -> Tensor:
        assert wanted, f"{mlp}: no expert is wanted"
        assert all(0 <= expert < count for expert in wanted), f"{mlp}: {list(wanted)} of {count} experts"
        out = torch.empty(0)
        for j in range(count):
            weight = torch.cat([self.take(f"{mlp}experts.{j}.{name}_proj.weight") for name in names])
            for slot in (slot for slot, expert in enumerate(wanted) if expert == j):
                laid = self.layout(weight)
                out = out if out.numel() else laid.new_empty(len(wanted), *laid.shape)
                out[slot] = laid
        return out
