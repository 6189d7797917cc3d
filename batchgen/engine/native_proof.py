"""The proof of engine/self_test.py for native-sm90/1: every linear at many M, the ops of a layer, the canary."""

from time import perf_counter

import torch

from batchgen.engine.canary import CUTS, NUM_BLOCKS, POSITIONS, Span, prove_canary, step_of
from batchgen.engine.op_proof import Ops
from batchgen.engine.self_test import SelfTest
from batchgen.kernels import triton as ops
from batchgen.kernels.step_shape import StepShape
from batchgen.models.any_decoder import Cache
from batchgen.models.native_decoder import NativeDecoder

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
        most = max(POSITIONS, max_num_seqs if op == "logits" else max_num_batched_tokens)
        Ms = [M for M in SIZES if most > M] + [most]
        ops.prove([(op, N, K)], Ms, decoder.device)
        proof.checks.count += len(Ms)
        proof.max_rows = max(proof.max_rows, most)
    cache = decoder.new_cache(NUM_BLOCKS)
    _walk(decoder, cache[0], proof)
    canary = prove_canary(decoder, cache, proof.checks)
    return SelfTest(canary, proof.count, proof.checks.count, proof.max_rows, round(perf_counter() - started, 3))


def _walk(decoder: NativeDecoder, cache: Cache, proof: Ops) -> None:
    """The first layer and the head, op by op, on rows of the canary."""
    layer, eps = decoder.layers[0], decoder.config.rms_norm_eps
    step = step_of([Span(0, 0, POSITIONS)], decoder.config.vocab_size).on(decoder.device)

    def norm(r: slice, h: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = h[r].clone()
        return ops.add_rms_norm(total, None if y is None else y[r], weight, eps), total

    def rotary_store(r: slice) -> tuple[torch.Tensor, ...]:
        slots = step.slots[r]
        place = (step.positions[r], slots)
        q = ops.rotary_store(qkv[r], layer.qkv_bias, layer.norms, eps, decoder.rotary, place, cache)
        return q, *(part[slots // 32, :, slots % 32] for part in cache)

    def attend(r: slice) -> tuple[torch.Tensor, ...]:
        count = r.stop - (r.start or 0)
        start = torch.tensor([0, count], dtype=torch.int32, device=decoder.device)
        shape = StepShape(int(count == 1), count, r.stop)
        return (ops.attention(q[r], cache, step.block_tables, start, step.positions[r], shape),)

    h = proof.prove("embedding", lambda r: (ops.embedding(step.token_ids[r], decoder.embed),))
    x = proof.prove("rms_norm (input)", lambda r: norm(r, h, None, layer.input_norm))
    qkv = proof.prove("linear (qkv)", lambda r: (ops.linear(x[r], layer.qkv),))
    q = proof.prove("rotary_store", rotary_store)
    mixed = proof.prove("attention", attend, [slice(a, b) for a in CUTS for b in (a + 1, POSITIONS)])
    y = proof.prove("linear (attention output)", lambda r: (ops.linear(mixed[r], layer.out),))
    x = proof.prove("rms_norm (post-attention)", lambda r: norm(r, h, y, layer.post_norm))
    gated = proof.prove("linear_silu_mul", lambda r: (ops.linear_silu_mul(x[r], layer.gate_up),))
    y = proof.prove("linear (down)", lambda r: (ops.linear(gated[r], layer.down),))
    x = proof.prove("rms_norm (final)", lambda r: norm(r, h, y, decoder.final_norm))
    proof.prove("linear (head)", lambda r: (ops.linear(x[r], decoder.lm_head, dtype=torch.float32),))
