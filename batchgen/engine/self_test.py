"""Proof at every start, on the model's own weights, that what is computed beside a row cannot be seen in its bits.

Each op of the first layer, and those before and after the layers, runs twice on the same rows, then on the first M of
them for several M, and on single rows; every shape of linear that the model has is among them. Then the canary goes
through all layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from batchgen import kernels
from batchgen.engine.bits import Checks, as_bits
from batchgen.engine.canary import CUTS, NUM_BLOCKS, POSITIONS, Span, prove_canary, step_of
from batchgen.kernels import PackedWeight
from batchgen.kernels.cache_rows import cache_rows
from batchgen.models.any_decoder import Cache
from batchgen.models.decoder import Decoder

Tensor = torch.Tensor

SIZES = (1, 2, 3, 7, 16, 17, 33)  # first rows that are compared with the same rows of all
SINGLE = (1, 32, POSITIONS - 1)
AFFORDABLE = 2**29  # products of a linear that is also tried on as many rows as a step can have


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


def _walk(decoder: Decoder, cache: Cache, ops: "Ops") -> None:
    """The first layer, as layers/ and the decoder run it, op by op."""
    layer, eps = decoder.layers[0], decoder.config.rms_norm_eps
    attention, mlp = layer.attention, layer.mlp
    step = step_of([Span(0, 0, POSITIONS)], decoder.config.vocab_size).on(decoder.device)

    def norm(name: str, x: Tensor, weight: Tensor) -> Tensor:
        return ops.prove(f"rms_norm ({name})", lambda r: (kernels.rms_norm(x[r], weight, eps),))

    def rotary_store(r: slice) -> tuple[Tensor, ...]:
        slots = step.slots[r]
        q = kernels.rotary_store(
            qkv[r], attention.norms, attention.eps, decoder.rotary, (step.positions[r], slots), cache
        )
        return q, *cache_rows(cache, slots)

    def attend(r: slice) -> tuple[Tensor, ...]:
        start = torch.tensor([0, r.stop - (r.start or 0)], dtype=torch.int32, device=decoder.device)
        return (kernels.attention(q[r], cache, step.block_tables, start, step.positions[r]),)

    residual = ops.prove("embedding", lambda r: (kernels.embedding(step.token_ids[r], decoder.embed),))
    qkv = ops.linear("qkv", norm("input", residual, layer.input_norm), attention.qkv, bias=attention.qkv_bias)
    q = ops.prove("rotary_store", rotary_store)
    mixed = ops.prove("attention", attend, [slice(a, b) for a in CUTS for b in (a + 1, POSITIONS)])
    residual = ops.linear("attention output", mixed, attention.out, residual=residual)
    gated = ops.gated("gate and up", norm("post-attention", residual, layer.post_norm), mlp.gate_up)
    residual = ops.linear("down", gated, mlp.down, residual=residual)
    ops.linear("head", norm("final", residual, decoder.final_norm), decoder.lm_head)


class Ops:
    """Proves one op after the other, and counts."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.checks = Checks()
        self.count = 0
        self.max_rows = POSITIONS
        self._most = max_num_batched_tokens

    def prove(self, what: str, op: Callable[[slice], tuple[Tensor, ...]], further: Sequence[slice] = ()) -> Tensor:
        """The first output of the op on all rows, once it is the same on any of them. op: rows -> outputs."""
        self.count += 1
        whole = op(slice(POSITIONS))
        self.checks.same(op(slice(POSITIONS)), whole, f"{what}: a second launch", "the first")
        for rows in (*map(slice, SIZES), *(slice(row, row + 1) for row in SINGLE), *further):
            start, expected = rows.start or 0, [output[rows] for output in whole]
            how = f"{what}: a launch of {rows.stop - start} rows, from row {start},"
            self.checks.same(op(rows), expected, how, f"one of {POSITIONS}")
        return whole[0]

    def linear(
        self, name: str, x: Tensor, weight: PackedWeight, *, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        def op(x: Tensor, residual: Tensor | None) -> Tensor:
            return kernels.linear(x, weight, bias, residual)

        what = f"linear ({name}, {weight.rows} x {weight.columns})"
        out = self.prove(what, lambda r: (op(x[r], None if residual is None else residual[r]),))
        self._many(what, weight, out, lambda t: op(t(x), None if residual is None else t(residual)))
        return out

    def gated(self, name: str, x: Tensor, weight: PackedWeight) -> Tensor:
        what = f"linear_silu_mul ({name}, {weight.rows} x {weight.columns})"
        out = self.prove(what, lambda r: (kernels.linear_silu_mul(x[r], weight),))
        self._many(what, weight, out, lambda t: kernels.linear_silu_mul(t(x), weight))
        return out

    def _many(
        self, what: str, weight: PackedWeight, out: Tensor, op: Callable[[Callable[[Tensor], Tensor]], Tensor]
    ) -> None:
        """As many rows as a step can have, or as are affordable: copies of the others."""
        rows = min(self._most, AFFORDABLE // (weight.rows * weight.columns))
        if rows <= POSITIONS:
            return
        self.max_rows = max(self.max_rows, rows)

        def tiled(x: Tensor) -> Tensor:
            return torch.from_numpy(as_bits(x)[np.arange(rows) % len(x)]).view(x.dtype).to(x.device)

        self.checks.same([op(tiled)], [tiled(out)], f"{what}: a launch of {rows} rows", f"one of {POSITIONS}")
