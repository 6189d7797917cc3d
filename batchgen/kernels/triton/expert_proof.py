"""The proof that neither the tiles of the experts nor their company can be seen in a pair's bits, on this device."""

from collections.abc import Sequence

import torch

from batchgen.errors import EngineError
from batchgen.kernels.routing import Pairs
from batchgen.kernels.triton.experts import experts
from batchgen.kernels.triton.proof import bits
from batchgen.kernels.triton.rows import silu_mul
from batchgen.kernels.triton.tile import product
from batchgen.kernels.triton.tuning import PLAIN

_JUDGE = PLAIN[0][1]  # one tile of the dense product, whatever the rows


def prove_experts(gate_up: torch.Tensor, down: torch.Tensor, top_k: int, Ms: Sequence[int]) -> int:
    """Compare the experts at each M with plain dense products, bit by bit; how many comparisons held.

    gate_up bf16 [S, 2 I, H], down bf16 [S, H, I]. Of the M first rows each goes to `top_k` slots; some slots get many
    pairs, some one, some none. Raises EngineError that names the M where a bit differs.
    """
    x, pairs = proof_pairs(max(Ms), len(down), top_k, gate_up)
    expected = judged(x, pairs, gate_up, down)
    for count in (*sorted(set(Ms)), max(Ms)):  # the largest twice
        some = Pairs(*(part[: count * top_k].clone() for part in pairs))
        found, there = experts(x[:count].clone(), some, gate_up, down), some.slots >= 0
        if not torch.equal(bits(found[there]), bits(expected[: count * top_k][there])):
            raise EngineError(
                f"self-test: {len(down)} experts of {tuple(down.shape[1:])} give other bits for {count} tokens than "
                "plain products",
                hint="no row made here could be reproduced; the build or the processor is at fault",
            )
    return len(set(Ms)) + 1


def proof_pairs(M: int, S: int, top_k: int, like: torch.Tensor) -> tuple[torch.Tensor, Pairs]:
    """x bf16 [M, H] with row scales over six orders of magnitude, and pairs whose slots are crowded unevenly.

    Every thirteenth pair has no slot; the last slot has one pair, the one before it none, where there are so many.
    """
    generator = torch.Generator(like.device).manual_seed(M)
    x = torch.randn(M, like.shape[2], generator=generator, device=like.device, dtype=torch.bfloat16)
    x *= torch.logspace(-3, 3, M, device=like.device, dtype=torch.bfloat16)[:, None]
    x[:, 3::97] *= 100
    skewed = torch.rand(M * top_k, generator=generator, device=like.device).square()
    slots = (skewed * max(1, S - 2)).int()
    slots[12::13] = -1
    slots[0] = S - 1
    rows = torch.arange(M, dtype=torch.int32, device=like.device).repeat_interleave(top_k)
    return x, Pairs(rows, slots)


def judged(x: torch.Tensor, pairs: Pairs, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """What the experts should give: each slot's rows by the dense product, in one tile. Undefined at slot -1."""
    y = torch.empty(len(pairs.slots), x.shape[1], dtype=x.dtype, device=x.device)
    for slot in pairs.slots.unique().tolist():
        if slot < 0:
            continue
        at = (pairs.slots == slot).nonzero()[:, 0]
        double = x.new_empty(len(at), gate_up.shape[1])
        inner = silu_mul(product(x[pairs.rows[at].long()], gate_up[slot], double, _JUDGE))
        y[at] = product(inner, down[slot], torch.empty_like(y[at]), _JUDGE)
    return y
