"""The decoder of models/decoder.py on the tensor cores of an NVIDIA GPU: profile native-sm90/1."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.errors import ModelError
from batchgen.kernels import triton as ops
from batchgen.kernels.constants import BLOCK_SIZE, MAX_HEAD_DIM
from batchgen.kernels.memory import zeros
from batchgen.layers.rotary import rotary_table
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import Cache
from batchgen.models.config import ModelConfig

_DEPTH = 16  # sizes that matrix instructions and 16-byte loads take


class NativeLayer(NamedTuple):
    """The weights of one layer: linears bf16 [N, K], norms and biases float32."""

    input_norm: torch.Tensor
    qkv: torch.Tensor  # [(Hq + 2 Hk) D, H]
    qkv_bias: torch.Tensor | None
    norms: tuple[torch.Tensor, torch.Tensor] | None  # of the heads of q and k, [D]
    out: torch.Tensor  # [H, Hq D]
    post_norm: torch.Tensor
    gate_up: torch.Tensor  # [2 I, H]
    down: torch.Tensor  # [H, I]


class NativeDecoder:
    """Token ids in, logits out. The residual stream is float32; all else between ops is bfloat16."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, torch.Tensor], max_model_len: int, device: torch.device
    ) -> None:
        """`weights`: of models/device_weights.py, on `device`. Raises ModelError for sizes the kernels do not take."""
        _check_sizes(config)
        self.config, self.device = config, device
        cos, sin = rotary_table(config.inverse_frequencies(), max_model_len)
        self.rotary = cos.to(device), sin.to(device)
        self.embed = weights["embed"]
        self.lm_head = weights["embed" if config.tie_word_embeddings else "lm_head"]
        self.final_norm = weights["final_norm"]
        self.layers = [_layer(config, weights, f"layers.{i}.") for i in range(config.num_layers)]

    def forward(self, step: StepTensors, cache: list[Cache]) -> torch.Tensor:
        """Logits float32 [R, V] of the step's `sample_rows`; keys and values of all tokens go to `cache`.

        A padding token has position -1 and slot -1. Launches only: it can be captured in a graph.
        """
        assert step.shape
        eps, y = self.config.rms_norm_eps, None
        h = kernels.told("embedding", ops.embedding(step.token_ids, self.embed))
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = kernels.told("rms_norm", ops.add_rms_norm(h, y, layer.input_norm, eps))
            qkv = kernels.told("linear", ops.linear(x, layer.qkv))
            q = self._rotary_store(qkv, layer, step, layer_cache)
            mixed = ops.attention(q, layer_cache, step.block_tables, step.query_start, step.positions, step.shape)
            y = kernels.told("linear", ops.linear(kernels.told("attention", mixed), layer.out))
            x = kernels.told("rms_norm", ops.add_rms_norm(h, y, layer.post_norm, eps))
            gated = kernels.told("linear_silu_mul", ops.linear_silu_mul(x, layer.gate_up))
            y = kernels.told("linear", ops.linear(gated, layer.down))
        assert y is not None
        if len(step.sample_rows) < len(h):  # else they are all of them, in order
            h, y = h[step.sample_rows], y[step.sample_rows]
        normed = kernels.told("rms_norm", ops.add_rms_norm(h, y, self.final_norm, eps))
        return kernels.told("linear", ops.linear(normed, self.lm_head, dtype=torch.float32))

    def _rotary_store(self, qkv: torch.Tensor, layer: NativeLayer, step: StepTensors, cache: Cache) -> torch.Tensor:
        place = (step.positions, step.slots)
        q = ops.rotary_store(qkv, layer.qkv_bias, layer.norms, self.config.rms_norm_eps, self.rotary, place, cache)
        if kernels.is_watched():
            block, offset = step.slots // BLOCK_SIZE, step.slots % BLOCK_SIZE
            k, v = (part[block, :, offset] for part in cache)
            kernels.told("rotary_store", q, {"q": q, "k": k, "v": v})
        return q

    def new_cache(self, num_blocks: int) -> list[Cache]:
        """Keys and values bf16 [blocks, Hk, 32, D] of each layer. Raises EngineError when there is no memory."""
        shape = (num_blocks, self.config.num_kv_heads, BLOCK_SIZE, self.config.head_dim)

        def part() -> torch.Tensor:
            return zeros(*shape, dtype=torch.bfloat16, device=self.device)

        return [(part(), part()) for _ in range(self.config.num_layers)]

    def linears(self) -> list[tuple[str, int, int]]:
        """Op, N and K of every shape of linear, for kernels.triton.prove."""
        layer = self.layers[0]
        shapes = {("linear", *weight.shape) for weight in (layer.qkv, layer.out, layer.down)}
        shapes |= {("linear_silu_mul", *layer.gate_up.shape), ("logits", *self.lm_head.shape)}
        return sorted(shapes)


def _layer(config: ModelConfig, weights: Mapping[str, torch.Tensor], at: str) -> NativeLayer:
    return NativeLayer(
        input_norm=weights[at + "input_norm"],
        qkv=weights[at + "qkv"],
        qkv_bias=weights[at + "qkv_bias"] if config.qkv_bias else None,
        norms=(weights[at + "q_norm"], weights[at + "k_norm"]) if config.qk_norm else None,
        out=weights[at + "o"],
        post_norm=weights[at + "post_norm"],
        gate_up=weights[at + "gate_up"],
        down=weights[at + "down"],
    )


def _check_sizes(config: ModelConfig) -> None:
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        if (value := getattr(config, name)) % _DEPTH:
            raise ModelError(f"{name} is {value}; the kernels take multiples of {_DEPTH}", where=config.architecture)
    if config.head_dim > MAX_HEAD_DIM:
        raise ModelError(f"head_dim is {config.head_dim}; the kernels take {MAX_HEAD_DIM} at most")
