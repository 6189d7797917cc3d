"""The ops of a MoE layer on a CPU: checked, thin calls into csrc/."""

import torch

from batchgen.errors import EngineError
from batchgen.kernels.constants import LANES, MAX_TOP_K, PANEL, TILE_K
from batchgen.kernels.cpu.native import address, library, require_multiple, require_native
from batchgen.kernels.packing import PackedExperts
from batchgen.kernels.routing import Pairs, Routing

Tensor = torch.Tensor
F32, BF16, I32 = torch.float32, torch.bfloat16, torch.int32


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    (T, E), k = logits.shape, routing.top_k
    if not 0 < k <= min(E, MAX_TOP_K):
        raise EngineError(f"{k} experts of {E} were asked for; the kernels choose 1 to {MAX_TOP_K}")
    experts, weights = torch.empty(T, k, dtype=I32), torch.empty(T, k)
    library().route(
        address(logits, F32, T, E),
        address(bias, F32, E),
        experts.data_ptr(),
        weights.data_ptr(),
        routing.scale,
        routing.scoring == "sigmoid",
        routing.norm_topk,
        T,
        E,
        k,
    )
    return experts, weights


def _packed(weight: PackedExperts) -> int:
    if weight.native:
        require_native()
        require_multiple("the inputs of an expert's linear", weight.columns, TILE_K)
    return address(weight.data, BF16, weight.slots, -(-weight.rows // PANEL), weight.columns // 2, PANEL, 2)


def experts(x: Tensor, pairs: Pairs, gate_up: PackedExperts, down: PackedExperts) -> Tensor:
    (R, H), inner, P = x.shape, down.columns, len(pairs.rows)
    require_multiple("the width of an expert", inner, PANEL)
    require_multiple("the width of a layer with experts", H, LANES)
    found = (gate_up.rows, gate_up.columns, down.rows, gate_up.slots, gate_up.native)
    if found != (2 * inner, H, H, down.slots, down.native):
        raise EngineError(f"{down.slots} experts of {inner} inner values do not fit rows of {H}: {found}")
    y = torch.empty(P, H)
    library().experts(
        address(x, BF16, R, H),
        address(pairs.rows, I32, P),
        address(pairs.slots, I32, P),
        _packed(gate_up),
        _packed(down),
        y.data_ptr(),
        P,
        down.slots,
        H,
        inner,
        down.native,
    )
    return y


def combine(rows: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor) -> Tensor:
    T, k, H = rows.shape
    require_multiple("the width of a sum of experts", H, LANES)
    out = torch.empty(T, H)
    library().combine(
        address(rows, F32, T, k, H),
        address(weights, F32, T, k),
        address(shared, F32, T, H),
        address(residual, F32, T, H),
        out.data_ptr(),
        T,
        k,
        H,
    )
    return out
