"""The decoder of every supported family: Llama, Mistral, Qwen2 (biased qkv), Qwen3 (normed heads), Qwen3-MoE, Dots1."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.errors import ModelError
from batchgen.kernels import PackedExperts, PackedWeight
from batchgen.kernels.constants import BLOCK_SIZE, LANES, MAX_HEAD_DIM, MAX_TOP_K, PANEL, TILE_K
from batchgen.kernels.device import CPU
from batchgen.kernels.memory import room_for, zeros
from batchgen.kernels.packing import pack
from batchgen.layers.attention import Attention
from batchgen.layers.mlp import GatedMlp
from batchgen.layers.moe import Moe
from batchgen.layers.rotary import rotary_table
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import Cache
from batchgen.models.config import ModelConfig, MoeConfig
from batchgen.models.state_dict import write_over
from batchgen.models.weights import Checkpoint
from batchgen.parallel.exchange import Exchange
from batchgen.parallel.experts import ExpertParallel


class Layer(NamedTuple):
    """Attention and a gated MLP, or experts, each behind its norm."""

    input_norm: torch.Tensor
    attention: Attention
    post_norm: torch.Tensor
    mlp: GatedMlp | Moe


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
        parallel: ExpertParallel | None = None,
    ) -> None:
        """`weights`: names of models/fused.py, linears packed; `native`: linears on the matrix unit (native-amx/1).
        `parallel`: where the experts are, of which `weights` has those of this rank; None: all are here.

        Raises ModelError for sizes the kernels do not take, EngineError when the weights do not fit on `device`.
        """
        _check_sizes(config, TILE_K if native else LANES)
        self.config = config
        self.device = device
        cos, sin = rotary_table(config.inverse_frequencies(), max_model_len)
        self.rotary = cos.to(device), sin.to(device)
        with room_for("the weights"):
            weights = {name: tensor.to(device) for name, tensor in weights.items()}
        self._weights = weights
        head = "embed" if config.tie_word_embeddings else "lm_head"
        self.embed = PackedWeight(weights["embed"], config.vocab_size)
        self.lm_head = PackedWeight(weights[head], config.vocab_size, native)
        self.final_norm = weights["final_norm"]
        self._logits = torch.empty(0, config.vocab_size, device=device)
        self.layers = [_layer(config, weights, i, native) for i in range(config.num_layers)]
        self.parallel = ExpertParallel.alone(config.moe.num_experts) if config.moe and parallel is None else parallel
        for i, layer in enumerate(self.layers):
            if isinstance(layer.mlp, Moe):
                self._check_slots(i, layer.mlp)

    def forward(self, step: StepTensors, cache: list[Cache]) -> torch.Tensor:
        """Logits float32 [R, V] of the step's `sample_rows`, good until the next call.

        Keys and values of all tokens go to `cache`.
        """
        eps = self.config.rms_norm_eps
        h = kernels.embedding(step.token_ids, self.embed)
        for i, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            h = layer.attention(kernels.rms_norm(h, layer.input_norm, eps), h, step, self.rotary, layer_cache)
            x = kernels.rms_norm(h, layer.post_norm, eps)
            h = layer.mlp(x, h, self._exchange(i)) if isinstance(layer.mlp, Moe) else layer.mlp(x, h)
        rows = len(step.sample_rows)
        if rows > len(self._logits):
            self._logits = zeros(rows, self.config.vocab_size, dtype=torch.float32, device=self.device)
        normed = kernels.rms_norm(h[step.sample_rows], self.final_norm, eps)
        return kernels.linear(normed, self.lm_head, out=self._logits[:rows])

    def idle(self) -> None:
        """A step of the other ranks, in which this one has no token: its experts answer them."""
        for i, layer in enumerate(self.layers):
            if isinstance(layer.mlp, Moe):
                layer.mlp.serve(self._exchange(i))

    def end_of_step(self) -> None:
        """Between two steps, on all ranks together: experts may move, from slot to slot of the weights."""
        if self.parallel is not None:
            experts = {i: layer.mlp for i, layer in enumerate(self.layers) if isinstance(layer.mlp, Moe)}
            self.parallel.end_of_step({i: (moe.gate_up.data, moe.down.data) for i, moe in experts.items()})

    def replace_weights(self, model: Checkpoint) -> str:
        """Go on with the weights of `model`, which has this config; the new weights digest. Of one rank alone."""
        return write_over(self._weights, model, lambda weight: pack(weight).data)

    def _exchange(self, layer: int) -> Exchange:
        assert self.parallel is not None, "a model with experts has it"
        return self.parallel.exchange(layer)

    def _check_slots(self, layer: int, moe: Moe) -> None:
        assert self.parallel is not None, "a model with experts has it"
        here = len(self.parallel.slots(layer))
        if moe.gate_up.slots != here or moe.down.slots != here:
            raise ModelError(
                f"the weights of layer {layer} have {moe.gate_up.slots} experts, and this rank holds {here}",
                where=self.config.architecture,
            )

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


def _layer(config: ModelConfig, weights: Mapping[str, torch.Tensor], i: int, native: bool) -> Layer:
    D, at = config.head_dim, f"layers.{i}."
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * D
    attention = Attention(
        qkv=PackedWeight(weights[at + "qkv"], qkv_rows, native),
        qkv_bias=weights[at + "qkv_bias"] if config.qkv_bias else None,
        norms=(weights[at + "q_norm"], weights[at + "k_norm"]) if config.qk_norm else None,
        out=PackedWeight(weights[at + "o"], config.hidden_size, native),
        eps=config.rms_norm_eps,
    )
    if config.moe is not None and config.is_moe(i):
        mlp: GatedMlp | Moe = _moe(config.moe, config.hidden_size, weights, at, native)
    else:
        mlp = _gated(weights, at, config.intermediate_size, config.hidden_size, native)
    return Layer(weights[at + "input_norm"], attention, weights[at + "post_norm"], mlp)


def _gated(weights: Mapping[str, torch.Tensor], at: str, inner: int, hidden: int, native: bool) -> GatedMlp:
    gate_up, down = weights[at + "gate_up"], weights[at + "down"]
    return GatedMlp(PackedWeight(gate_up, 2 * inner, native), PackedWeight(down, hidden, native))


def _moe(moe: MoeConfig, hidden: int, weights: Mapping[str, torch.Tensor], at: str, native: bool) -> Moe:
    return Moe(
        router=PackedWeight(weights[at + "router"], moe.num_experts, native),
        bias=weights[at + "router_bias"] if moe.has_bias else None,
        routing=moe.routing,
        gate_up=PackedExperts(weights[at + "experts_gate_up"], 2 * moe.inner_size, native),
        down=PackedExperts(weights[at + "experts_down"], hidden, native),
        shared=_gated(weights, at + "shared_", moe.shared_size, hidden, native) if moe.shared_size else None,
    )


def _check_sizes(config: ModelConfig, lanes: int) -> None:
    sizes = [("hidden_size", config.hidden_size, lanes), ("head_dim", config.head_dim, 2 * LANES)]
    if not all(map(config.is_moe, range(config.num_layers))):
        sizes.append(("intermediate_size", config.intermediate_size, PANEL))
    if moe := config.moe:
        sizes += [
            ("moe_intermediate_size", moe.inner_size, PANEL),
            ("the shared expert's size", moe.shared_size, PANEL),
        ]
        if moe.routing.top_k > MAX_TOP_K:
            message = f"{moe.routing.top_k} experts a token; the kernels choose {MAX_TOP_K} at most"
            raise ModelError(message, where=config.architecture)
    for name, value, multiple in sizes:
        if value % multiple:
            raise ModelError(f"{name} is {value}; the kernels take multiples of {multiple}", where=config.architecture)
    if config.head_dim > MAX_HEAD_DIM:
        raise ModelError(f"head_dim is {config.head_dim}; the kernels take {MAX_HEAD_DIM} at most")
