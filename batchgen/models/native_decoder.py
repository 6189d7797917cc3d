"""The decoder of models/decoder.py on the tensor cores of an NVIDIA GPU: profile native-sm90/1."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.errors import ModelError
from batchgen.kernels import triton as ops
from batchgen.kernels.constants import BLOCK_SIZE, MAX_HEAD_DIM, MAX_TOP_K
from batchgen.kernels.memory import zeros
from batchgen.kernels.routing import Routing
from batchgen.layers.rotary import rotary_table
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import Cache
from batchgen.models.config import ModelConfig, MoeConfig
from batchgen.models.state_dict import write_over
from batchgen.models.weights import Checkpoint
from batchgen.parallel.exchange import Exchange
from batchgen.parallel.experts import ExpertParallel

Tensor = torch.Tensor

_DEPTH = 16  # sizes that matrix instructions and 16-byte loads take


class NativeMlp(NamedTuple):
    """A gated feed-forward block, bf16 [N, K]."""

    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]

    def __call__(self, x: Tensor) -> Tensor:
        """bf16 [T, H] -> bf16 [T, H]."""
        gated = kernels.told("linear_silu_mul", ops.linear_silu_mul(x, self.gate_up))
        return kernels.told("linear", ops.linear(gated, self.down))


class NativeMoe(NamedTuple):
    """A feed-forward block of experts, of which those of this rank are here, bf16."""

    router: Tensor  # [E, H]
    bias: Tensor | None  # float32 [E]
    routing: Routing
    gate_up: Tensor  # [S, 2 I, H]
    down: Tensor  # [S, H, I]
    shared: NativeMlp | None

    def __call__(self, x: Tensor, exchange: Exchange, positions: Tensor | None) -> Tensor:
        """bf16 [T, H] -> bf16 [T, H]; `positions` int32 [T]: a row at -1 is padding and goes to no expert."""
        logits = kernels.told("linear", ops.linear(x, self.router, dtype=torch.float32))
        experts, weights = ops.route(logits, self.bias, self.routing, positions)
        kernels.told("route", experts, {"experts": experts, "weights": weights})
        rows = kernels.told("experts", self._ask(x, experts, exchange))
        shared = None if self.shared is None else self.shared(x)
        return kernels.told("combine", ops.combine(rows, weights, shared))

    def serve(self, exchange: Exchange) -> None:
        """What a rank without tokens does in this layer: its experts answer the others."""
        device = self.down.device
        x = torch.empty(0, self.down.shape[1], dtype=torch.bfloat16, device=device)
        self._ask(x, torch.empty(0, self.routing.top_k, dtype=torch.int32, device=device), exchange)

    def _ask(self, x: Tensor, experts: Tensor, exchange: Exchange) -> Tensor:
        arrived = exchange.dispatch(x, experts)
        return exchange.combine(ops.experts(arrived.x, arrived.pairs, self.gate_up, self.down))


class NativeLayer(NamedTuple):
    """The weights of one layer: linears bf16 [N, K], norms and biases float32."""

    input_norm: Tensor
    qkv: Tensor  # [(Hq + 2 Hk) D, H]
    qkv_bias: Tensor | None
    norms: tuple[Tensor, Tensor] | None  # of the heads of q and k, [D]
    out: Tensor  # [H, Hq D]
    post_norm: Tensor
    mlp: NativeMlp | NativeMoe


class NativeDecoder:
    """Token ids in, logits out. The residual stream is float32; all else between ops is bfloat16."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        max_model_len: int,
        device: torch.device,
        parallel: ExpertParallel | None = None,
    ) -> None:
        """`weights`: of models/device_weights.py, on `device`; `parallel`: where the experts are, None: all are here.

        Raises ModelError for sizes the kernels do not take.
        """
        _check_sizes(config)
        self.config, self.device = config, device
        self._weights = weights
        cos, sin = rotary_table(config.inverse_frequencies(), max_model_len)
        self.rotary = cos.to(device), sin.to(device)
        self.embed = weights["embed"]
        self.lm_head = weights["embed" if config.tie_word_embeddings else "lm_head"]
        self.final_norm = weights["final_norm"]
        self.layers = [_layer(config, weights, i) for i in range(config.num_layers)]
        self.parallel = ExpertParallel.alone(config.moe.num_experts) if config.moe and parallel is None else parallel
        for i, moe in self._moes().items():
            if len(moe.down) != (here := len(self._parallel().slots(i))):
                message = f"the weights of layer {i} have {len(moe.down)} experts, and this rank holds {here}"
                raise ModelError(message, where=config.architecture)

    def forward(self, step: StepTensors, cache: list[Cache]) -> Tensor:
        """Logits float32 [R, V] of the step's `sample_rows`; keys and values of all tokens go to `cache`.

        A padding token has position -1 and slot -1. Launches only: it can be captured in a graph.
        """
        assert step.shape
        eps, y, padded = self.config.rms_norm_eps, None, step.shape.is_padded
        h = kernels.told("embedding", ops.embedding(step.token_ids, self.embed))
        for i, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            x = kernels.told("rms_norm", ops.add_rms_norm(h, y, layer.input_norm, eps))
            qkv = kernels.told("linear", ops.linear(x, layer.qkv))
            q = self._rotary_store(qkv, layer, step, layer_cache)
            mixed = ops.attention(q, layer_cache, step.block_tables, step.query_start, step.positions, step.shape)
            y = kernels.told("linear", ops.linear(kernels.told("attention", mixed), layer.out))
            x = kernels.told("rms_norm", ops.add_rms_norm(h, y, layer.post_norm, eps))
            if isinstance(layer.mlp, NativeMoe):
                exchange = self._parallel().exchange(i, padded=padded)
                y = layer.mlp(x, exchange, step.positions if padded else None)
            else:
                y = layer.mlp(x)
        assert y is not None
        if len(step.sample_rows) < len(h):  # else they are all of them, in order
            h, y = h[step.sample_rows], y[step.sample_rows]
        normed = kernels.told("rms_norm", ops.add_rms_norm(h, y, self.final_norm, eps))
        return kernels.told("linear", ops.linear(normed, self.lm_head, dtype=torch.float32))

    def idle(self) -> None:
        """A step of the other ranks, in which this one has no token: its experts answer them."""
        for i, moe in self._moes().items():
            moe.serve(self._parallel().exchange(i))

    def end_of_step(self) -> None:
        """Between two steps, on all ranks together: experts may move, from slot to slot of the weights."""
        if self.parallel is not None:
            self.parallel.end_of_step({i: (moe.gate_up, moe.down) for i, moe in self._moes().items()})

    def replace_weights(self, model: Checkpoint) -> str:
        """Go on with the weights of `model`, which has this config; the new weights digest. Of one rank alone."""
        return write_over(self._weights, model, lambda weight: weight)

    def _moes(self) -> dict[int, NativeMoe]:
        return {i: layer.mlp for i, layer in enumerate(self.layers) if isinstance(layer.mlp, NativeMoe)}

    def _parallel(self) -> ExpertParallel:
        assert self.parallel is not None, "a model with experts has it"
        return self.parallel

    def _rotary_store(self, qkv: Tensor, layer: NativeLayer, step: StepTensors, cache: Cache) -> Tensor:
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

        def part() -> Tensor:
            return zeros(*shape, dtype=torch.bfloat16, device=self.device)

        return [(part(), part()) for _ in range(self.config.num_layers)]

    def linears(self) -> list[tuple[str, int, int]]:
        """Op, N and K of every shape of linear, for kernels.triton.prove."""
        shapes = {("logits", *self.lm_head.shape)}
        for layer in self.layers:
            shapes |= {("linear", *layer.qkv.shape), ("linear", *layer.out.shape)}
            mlp: NativeMlp | None = layer.mlp if isinstance(layer.mlp, NativeMlp) else layer.mlp.shared
            if isinstance(layer.mlp, NativeMoe):
                shapes.add(("logits", *layer.mlp.router.shape))
            if mlp is not None:
                shapes |= {("linear_silu_mul", *mlp.gate_up.shape), ("linear", *mlp.down.shape)}
        return sorted(shapes)


def _layer(config: ModelConfig, weights: Mapping[str, Tensor], i: int) -> NativeLayer:
    at = f"layers.{i}."
    is_moe = config.moe is not None and config.is_moe(i)
    return NativeLayer(
        input_norm=weights[at + "input_norm"],
        qkv=weights[at + "qkv"],
        qkv_bias=weights[at + "qkv_bias"] if config.qkv_bias else None,
        norms=(weights[at + "q_norm"], weights[at + "k_norm"]) if config.qk_norm else None,
        out=weights[at + "o"],
        post_norm=weights[at + "post_norm"],
        mlp=_moe(config.moe, weights, at) if config.moe and is_moe else _mlp(weights, at),
    )


def _mlp(weights: Mapping[str, Tensor], at: str) -> NativeMlp:
    return NativeMlp(weights[at + "gate_up"], weights[at + "down"])


def _moe(moe: MoeConfig, weights: Mapping[str, Tensor], at: str) -> NativeMoe:
    return NativeMoe(
        router=weights[at + "router"],
        bias=weights[at + "router_bias"] if moe.has_bias else None,
        routing=moe.routing,
        gate_up=weights[at + "experts_gate_up"],
        down=weights[at + "experts_down"],
        shared=_mlp(weights, at + "shared_") if moe.shared_size else None,
    )


def _check_sizes(config: ModelConfig) -> None:
    sizes = {"hidden_size": config.hidden_size, "head_dim": config.head_dim}
    if not all(map(config.is_moe, range(config.num_layers))):
        sizes["intermediate_size"] = config.intermediate_size
    if moe := config.moe:
        sizes |= {"moe_intermediate_size": moe.inner_size, "the shared expert's size": moe.shared_size}
        if moe.routing.top_k > MAX_TOP_K:
            message = f"{moe.routing.top_k} experts a token; the kernels choose {MAX_TOP_K} at most"
            raise ModelError(message, where=config.architecture)
    for name, value in sizes.items():
        if value % _DEPTH:
            raise ModelError(f"{name} is {value}; the kernels take multiples of {_DEPTH}", where=config.architecture)
    if config.head_dim > MAX_HEAD_DIM:
        raise ModelError(f"head_dim is {config.head_dim}; the kernels take {MAX_HEAD_DIM} at most")
