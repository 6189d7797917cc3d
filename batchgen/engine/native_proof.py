"""The proof of engine/self_test.py for native-sm90/1: every linear and the experts at many M, the ops, the canary."""

from time import perf_counter

import torch

from batchgen.engine.canary import CUTS, NUM_BLOCKS, POSITIONS, Span, prove_canary, step_of
from batchgen.engine.op_proof import Ops
from batchgen.engine.self_test import SelfTest
from batchgen.kernels import triton as ops
from batchgen.kernels.routing import Pairs
from batchgen.kernels.step_shape import StepShape
from batchgen.models.any_decoder import Cache
from batchgen.models.native_decoder import NativeDecoder, NativeLayer, NativeMlp, NativeMoe

Tensor = torch.Tensor

SIZES = (1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 129, 200, 256, 257, 384, 512, 1024, 2048, 4096, 8192)


@torch.inference_mode()
def prove(decoder: NativeDecoder, max_num_batched_tokens: int, max_num_seqs: int) -> SelfTest:
    """Prove `decoder`, whose rotary table covers POSITIONS positions or more, and compute its canary.

    An implementation of a linear that gives other bits is replaced for this process; any other difference raises
    EngineError that names the op and the rows.
    """
    started = perf_counter()
    proof = Ops(0)
    for op, N, K in decoder.linears():
        is_head = decoder.lm_head.shape == (N, K)
        Ms = _sizes(max(POSITIONS, max_num_seqs if is_head else max_num_batched_tokens))
        ops.prove([(op, N, K)], Ms, decoder.device)
        proof.checks.count += len(Ms)
        proof.max_rows = max(proof.max_rows, Ms[-1])
    kinds = _one_of_each_kind(decoder)
    for moe in (layer.mlp for layer in kinds):
        if isinstance(moe, NativeMoe):
            Ms = _sizes(max(POSITIONS, max_num_batched_tokens))
            proof.checks.count += ops.prove_experts(moe.gate_up, moe.down, moe.routing.top_k, Ms)
    cache = decoder.new_cache(NUM_BLOCKS)
    _Walk(decoder, cache[0], proof).run(kinds)
    canary = prove_canary(decoder, cache, proof.checks)
    return SelfTest(canary, proof.count, proof.checks.count, proof.max_rows, round(perf_counter() - started, 3))


def _sizes(most: int) -> list[int]:
    return [M for M in SIZES if most > M] + [most]


def _one_of_each_kind(decoder: NativeDecoder) -> list[NativeLayer]:
    kinds: dict[type, NativeLayer] = {}
    for layer in decoder.layers:
        kinds.setdefault(type(layer.mlp), layer)
    return list(kinds.values())


class _Walk:
    """The first layer of each kind and what is before and after the layers, op by op, on rows of the canary."""

    def __init__(self, decoder: NativeDecoder, cache: Cache, proof: Ops) -> None:
        self._decoder, self._cache, self._proof = decoder, cache, proof
        self._step = step_of([Span(0, 0, POSITIONS)], decoder.config.vocab_size).on(decoder.device)

    def run(self, layers: list[NativeLayer]) -> None:
        decoder, prove, y = self._decoder, self._proof.prove, None
        h = prove("embedding", lambda r: (ops.embedding(self._step.token_ids[r], decoder.embed),))
        for layer in layers:
            y = self._layer(layer, h, y)
        x = self._norm("final", h, y, decoder.final_norm)
        prove("linear (head)", lambda r: (ops.linear(x[r], decoder.lm_head, dtype=torch.float32),))

    def _layer(self, layer: NativeLayer, h: Tensor, y: Tensor | None) -> Tensor:
        y = self._attention(layer, self._norm("input", h, y, layer.input_norm))
        x = self._norm("post-attention", h, y, layer.post_norm)
        return self._experts(layer.mlp, x) if isinstance(layer.mlp, NativeMoe) else self._mlp(layer.mlp, x)

    def _norm(self, name: str, h: Tensor, y: Tensor | None, weight: Tensor) -> Tensor:
        """Of h + y; h stays as it is."""

        def op(r: slice) -> tuple[Tensor, ...]:
            total, eps = h[r].clone(), self._decoder.config.rms_norm_eps
            return ops.add_rms_norm(total, None if y is None else y[r], weight, eps), total

        return self._proof.prove(f"rms_norm ({name})", op)

    def _attention(self, layer: NativeLayer, x: Tensor) -> Tensor:
        decoder, prove, step, cache = self._decoder, self._proof.prove, self._step, self._cache
        qkv = prove("linear (qkv)", lambda r: (ops.linear(x[r], layer.qkv),))

        def rotary_store(r: slice) -> tuple[Tensor, ...]:
            slots = step.slots[r]
            place, eps = (step.positions[r], slots), decoder.config.rms_norm_eps
            q = ops.rotary_store(qkv[r], layer.qkv_bias, layer.norms, eps, decoder.rotary, place, cache)
            return q, *(part[slots // 32, :, slots % 32] for part in cache)

        def attend(r: slice) -> tuple[Tensor, ...]:
            count = r.stop - (r.start or 0)
            start = torch.tensor([0, count], dtype=torch.int32, device=decoder.device)
            shape = StepShape(int(count == 1), count, r.stop)
            return (ops.attention(q[r], cache, step.block_tables, start, step.positions[r], shape),)

        q = prove("rotary_store", rotary_store)
        mixed = prove("attention", attend, [slice(a, b) for a in CUTS for b in (a + 1, POSITIONS)])
        return prove("linear (attention output)", lambda r: (ops.linear(mixed[r], layer.out),))

    def _mlp(self, mlp: NativeMlp, x: Tensor) -> Tensor:
        gated = self._proof.prove("linear_silu_mul", lambda r: (ops.linear_silu_mul(x[r], mlp.gate_up),))
        return self._proof.prove("linear (down)", lambda r: (ops.linear(gated[r], mlp.down),))

    def _experts(self, moe: NativeMoe, x: Tensor) -> Tensor:
        """The experts of this rank stand in for all: nothing is exchanged."""
        prove = self._proof.prove
        logits = prove("linear (router)", lambda r: (ops.linear(x[r], moe.router, dtype=torch.float32),))
        slots = prove("route", lambda r: ops.route(logits[r], moe.bias, moe.routing)) % len(moe.down)
        weights = ops.route(logits, moe.bias, moe.routing)[1]

        def experts(r: slice) -> tuple[Tensor, ...]:
            some, k = slots[r].reshape(-1), slots.shape[1]
            numbers = torch.arange(len(some), dtype=torch.int32, device=x.device) // k
            y = ops.experts(x[r], Pairs(numbers, some), moe.gate_up, moe.down)
            return (y.view(-1, k, y.shape[1]),)

        rows = prove("experts", experts)
        shared = None if moe.shared is None else self._mlp(moe.shared, x)
        return prove("combine", lambda r: (ops.combine(rows[r], weights[r], None if shared is None else shared[r]),))
