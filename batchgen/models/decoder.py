"""The decoder that every supported family is: Llama, Mistral, Qwen2 (biased qkv), Qwen3 (normed heads)."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.errors import ModelError
from batchgen.kernels import PackedWeight
from batchgen.kernels.constants import BLOCK_SIZE, LANES, MAX_HEAD_DIM, PANEL, TILE_K
from batchgen.kernels.device import CPU
from batchgen.kernels.memory import room_for, zeros
from batchgen.layers.attention import Attention
from batchgen.layers.mlp import GatedMlp
from batchgen.layers.rotary import rotary_table
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import Cache
from batchgen.models.config import ModelConfig


class Layer(NamedTuple):
    """Attention and a gated MLP, each behind its norm."""

    input_norm: torch.Tensor
    attention: Attention
    post_norm: torch.Tensor
    mlp: GatedMlp


class Decoder:
    """Token ids in, logits out. The residual stream is float32; what enters a matrix product is bfloat16."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        max_model_len: int,
        *,
        native: bool = False,
        device: torch.device = CPU,
    ) -> None:
        """`weights`: names of models/fused.py, linears packed; `native`: linears on the matrix unit (native-amx/1).

        Raises ModelError for sizes the kernels do not take, EngineError when the weights do not fit on `device`.
        """
        _check_sizes(config, TILE_K if native else LANES)
        self.config = config
        self.device = device
        cos, sin = rotary_table(config.inverse_frequencies(), max_model_len)
        self.rotary = cos.to(device), sin.to(device)
        with room_for("the weights"):
            weights = {name: tensor.to(device) for name, tensor in weights.items()}
        head = "embed" if config.tie_word_embeddings else "lm_head"
        self.embed = PackedWeight(weights["embed"], config.vocab_size)
        self.lm_head = PackedWeight(weights[head], config.vocab_size, native)
        self.final_norm = weights["final_norm"]
        self._logits = torch.empty(0, config.vocab_size, device=device)
        self.layers = [_layer(config, weights, f"layers.{i}.", native) for i in range(config.num_layers)]

    def forward(self, step: StepTensors, cache: list[Cache]) -> torch.Tensor:
        """Logits float32 [R, V] of the step's `sample_rows`, good until the next call.

        Keys and values of all tokens go to `cache`.
        """
        eps = self.config.rms_norm_eps
        h = kernels.embedding(step.token_ids, self.embed)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            h = layer.attention(kernels.rms_norm(h, layer.input_norm, eps), h, step, self.rotary, layer_cache)
            h = layer.mlp(kernels.rms_norm(h, layer.post_norm, eps), h)
        rows = len(step.sample_rows)
        if rows > len(self._logits):
            self._logits = zeros(rows, self.config.vocab_size, dtype=torch.float32, device=self.device)
        normed = kernels.rms_norm(h[step.sample_rows], self.final_norm, eps)
        return kernels.linear(normed, self.lm_head, out=self._logits[:rows])

    def new_cache(self, num_blocks: int) -> list[Cache]:
        """Keys bf16 [blocks, Hk, D/2, 32, 2] and values bf16 [blocks, Hk, 16, D, 2] of each layer.

        Keys are laid out as a packed linear weight whose outputs are positions, values as one whose inputs are
        positions, so that attention runs on the linear's inner loop. Raises EngineError when there is no memory.
        """
        Hk, D, bf16 = self.config.num_kv_heads, self.config.head_dim, torch.bfloat16
        return [
            (
                zeros(num_blocks, Hk, D // 2, BLOCK_SIZE, 2, dtype=bf16, device=self.device),
                zeros(num_blocks, Hk, BLOCK_SIZE // 2, D, 2, dtype=bf16, device=self.device),
            )
            for _ in range(self.config.num_layers)
        ]


def _layer(config: ModelConfig, weights: Mapping[str, torch.Tensor], at: str, native: bool) -> Layer:
    D = config.head_dim
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * D
    attention = Attention(
        qkv=PackedWeight(weights[at + "qkv"], qkv_rows, native),
        qkv_bias=weights[at + "qkv_bias"] if config.qkv_bias else None,
        norms=(weights[at + "q_norm"], weights[at + "k_norm"]) if config.qk_norm else None,
        out=PackedWeight(weights[at + "o"], config.hidden_size, native),
        eps=config.rms_norm_eps,
    )
    mlp = GatedMlp(
        gate_up=PackedWeight(weights[at + "gate_up"], 2 * config.intermediate_size, native),
        down=PackedWeight(weights[at + "down"], config.hidden_size, native),
    )
    return Layer(weights[at + "input_norm"], attention, weights[at + "post_norm"], mlp)


def _check_sizes(config: ModelConfig, lanes: int) -> None:
    for name, multiple in (("hidden_size", lanes), ("intermediate_size", PANEL), ("head_dim", 2 * LANES)):
        if (value := getattr(config, name)) % multiple:
            raise ModelError(f"{name} is {value}; the kernels take multiples of {multiple}", where=config.architecture)
    if config.head_dim > MAX_HEAD_DIM:
        raise ModelError(f"head_dim is {config.head_dim}; the kernels take {MAX_HEAD_DIM} at most")
