"""Which experts a token goes to, and with what weights. One program a row, in a shape that follows E alone.

No program sees more than one row, and pointers are compiled without regard to their alignment, which would choose the
layout of a row's sum: a row's bits depend on neither T nor on where the row lies.
"""

import torch
import triton
import triton.language as tl

from batchgen.errors import EngineError
from batchgen.kernels.routing import Routing
from batchgen.kernels.triton.checks import check
from batchgen.kernels.triton.launch import begin, options
from batchgen.kernels.triton.rows import LOG2_E

MAX_EXPERTS = 1024  # a row stays in one warp's registers

_LEAST = tl.constexpr(-(1 << 63))
_TINY = tl.constexpr(1e-20)  # added to a sum of sigmoids, which may be 0


@triton.jit(do_not_specialize=["LOGITS", "BIAS", "POSITIONS", "EXPERTS", "WEIGHTS"])
def _route(
    LOGITS, BIAS, POSITIONS, EXPERTS, WEIGHTS, scale,
    E: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr, SIGMOID: tl.constexpr, NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The TOP experts of one row by (score descending, id ascending), a NaN above all, stored by id."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    ok = i < E
    begin(PDL)
    logit = tl.load(LOGITS + row * E + i, mask=ok, other=float("-inf"))
    score = logit
    if SIGMOID:
        weight = 1.0 / (1.0 + tl.exp2(-logit * LOG2_E))
        score = weight
        if HAS_BIAS:
            score += tl.load(BIAS + i, mask=ok, other=0.0)
    else:
        weight = tl.exp2((logit - tl.max(logit, 0)) * LOG2_E)
    # As whole numbers in the order of the scores, an id's complement below them: no two are equal. -0 is 0.
    order = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    order = tl.where(score == score, order ^ ((order >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    key = tl.where(ok, (order.to(tl.int64) << 32) + (BLOCK - i), _LEAST)
    chosen = i < 0
    for _ in tl.static_range(TOP):
        first = key == tl.max(key, 0)
        chosen = chosen | first
        key = tl.where(first, _LEAST, key)
    if NORM:
        total = tl.sum(tl.where(chosen, weight, 0.0), 0)
        if SIGMOID:
            total += _TINY
        weight = tl.div_rn(weight, total)
    elif not SIGMOID:
        weight = tl.div_rn(weight, tl.sum(tl.where(ok, weight, 0.0), 0))
    place = row * TOP + tl.cumsum(chosen.to(tl.int32), 0) - 1
    id = i
    if PADDED:
        id = tl.where(tl.load(POSITIONS + row) < 0, -1, id)
    tl.store(EXPERTS + place, id, mask=chosen)
    tl.store(WEIGHTS + place, weight * scale, mask=chosen)


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing, positions: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token, ascending, and their weights.

    logits float32 [T, E]; bias float32 [E], added to sigmoid scores for the choice alone; positions int32 [T]: a token
    at -1 is padding, and its experts are all -1  -> int32 [T, k], float32 [T, k].
    """
    T, E = logits.shape
    k, is_sigmoid = routing.top_k, routing.scoring == "sigmoid"
    check("the router's logits", logits, torch.float32, T, E)
    if bias is not None:
        check("the router's bias", bias, torch.float32, E)
    if positions is not None:
        check("positions", positions, torch.int32, T)
    if not 1 <= k <= E <= MAX_EXPERTS or (bias is not None and not is_sigmoid):
        raise EngineError(
            f"{k} of {E} experts by {routing.scoring} {'without' if bias is None else 'with'} a bias; the kernel takes "
            f"{MAX_EXPERTS} experts at most, and a bias of sigmoid scores alone"
        )
    experts = torch.empty(T, k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(T, k, dtype=torch.float32, device=logits.device)
    if T:
        _route[(T,)](
            logits, logits if bias is None else bias, experts if positions is None else positions, experts, weights,
            routing.scale, E, k, triton.next_power_of_2(E), is_sigmoid, routing.norm_topk, bias is not None,
            positions is not None, num_warps=1, **options(logits),
        )  # fmt: skip
    return experts, weights
