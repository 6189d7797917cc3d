"""Proof at every start, on the model's own weights, that what is computed beside a row cannot be seen in its bits.

Each op of the first layer of each kind, with experts or without, and those before and after the layers, runs twice on
the same rows, then on the first M of them for several M, and on single rows; every shape of linear that the model has
is among them. Then the canary goes through all layers.
"""

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from batchgen import kernels
from batchgen.engine.canary import CUTS, NUM_BLOCKS, POSITIONS, Span, prove_canary, step_of
from batchgen.engine.op_proof import Ops
from batchgen.kernels.cache_rows import cache_rows
from batchgen.layers.attention import Attention
from batchgen.layers.moe import Moe
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import Cache
from batchgen.models.decoder import Decoder, Layer

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was proven at a start."""

    canary: str  # SHA-256, hex: a function of weights and profile
    ops: int  # each launched twice on the same input
    comparisons: int  # of outputs, that all held
    max_rows: int  # the most rows that a linear was tried on
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def self_test(decoder: Decoder, max_num_batched_tokens: int) -> SelfTest:
    """Prove `decoder`, whose rotary table covers POSITIONS positions or more, and compute its canary.

    Raises EngineError that names the op, its shape and the rows where two outputs differ.
    """
    started = perf_counter()
    cache = decoder.new_cache(NUM_BLOCKS)
    ops = Ops(max_num_batched_tokens)
    _walk(decoder, cache[0], ops)
    canary = prove_canary(decoder, cache, ops.checks)
    return SelfTest(canary, ops.count, ops.checks.count, ops.max_rows, round(perf_counter() - started, 3))


def _walk(decoder: Decoder, cache: Cache, ops: Ops) -> None:
    """The first layer of each kind, as layers/ and the decoder run it, op by op."""
    eps, step = decoder.config.rms_norm_eps, step_of([Span(0, 0, POSITIONS)], decoder.config.vocab_size)
    step = step.on(decoder.device)

    def norm(name: str, x: Tensor, weight: Tensor) -> Tensor:
        return ops.prove(f"rms_norm ({name})", lambda r: (kernels.rms_norm(x[r], weight, eps),))

    residual = ops.prove("embedding", lambda r: (kernels.embedding(step.token_ids[r], decoder.embed),))
    for layer in _one_of_each_kind(decoder):
        x = norm("input", residual, layer.input_norm)
        mixed = _attention(decoder, layer.attention, step, cache, ops, x)
        residual = ops.linear("attention output", mixed, layer.attention.out, residual=residual)
        x = norm("post-attention", residual, layer.post_norm)
        if isinstance(layer.mlp, Moe):
            residual = _experts(ops, layer.mlp, x, residual)
        else:
            gated = ops.gated("gate and up", x, layer.mlp.gate_up)
            residual = ops.linear("down", gated, layer.mlp.down, residual=residual)
    ops.linear("head", norm("final", residual, decoder.final_norm), decoder.lm_head)


def _one_of_each_kind(decoder: Decoder) -> list[Layer]:
    kinds: dict[type, Layer] = {}
    for layer in decoder.layers:
        kinds.setdefault(type(layer.mlp), layer)
    return list(kinds.values())


def _attention(decoder: Decoder, attention: Attention, step: StepTensors, cache: Cache, ops: Ops, x: Tensor) -> Tensor:
    qkv = ops.linear("qkv", x, attention.qkv, bias=attention.qkv_bias)

    def rotary_store(r: slice) -> tuple[Tensor, ...]:
        place = step.positions[r], step.slots[r]
        q = kernels.rotary_store(qkv[r], attention.norms, attention.eps, decoder.rotary, place, cache)
        return q, *cache_rows(cache, step.slots[r])

    q = ops.prove("rotary_store", rotary_store)

    def attend(r: slice) -> tuple[Tensor, ...]:
        start = torch.tensor([0, r.stop - (r.start or 0)], dtype=torch.int32, device=decoder.device)
        return (kernels.attention(q[r], cache, step.block_tables, start, step.positions[r]),)

    return ops.prove("attention", attend, [slice(a, b) for a in CUTS for b in (a + 1, POSITIONS)])


def _experts(ops: Ops, moe: Moe, x: Tensor, residual: Tensor) -> Tensor:
    """The experts of this rank stand in for all: nothing is exchanged."""
    logits = ops.linear("router", x, moe.router)
    chosen = ops.prove("route", lambda r: kernels.route(logits[r], moe.bias, moe.routing))
    weights = kernels.route(logits, moe.bias, moe.routing)[1]
    rows = ops.experts(x, chosen % moe.down.slots, moe.gate_up, moe.down)
    shared = None
    if moe.shared is not None:
        gated = ops.gated("shared gate and up", x, moe.shared.gate_up)
        shared = ops.linear("shared down", gated, moe.shared.down)

    def combine(r: slice) -> tuple[Tensor, ...]:
        return (kernels.combine(rows[r], weights[r], None if shared is None else shared[r], residual[r]),)

    return ops.prove("combine", combine)
