"""The ops of a MoE layer on a GPU: checks what it is given, then launches."""

import torch

from batchgen.errors import EngineError
from batchgen.kernels.constants import LANES, MAX_TOP_K, PANEL
from batchgen.kernels.cuda.compiled import kernel, launch
from batchgen.kernels.cuda.ops import address, require_multiple
from batchgen.kernels.packing import PackedExperts
from batchgen.kernels.routing import Pairs, Routing

Tensor = torch.Tensor
F32, BF16, I32 = torch.float32, torch.bfloat16, torch.int32

_COLUMNS = 64  # of a tile


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    device, (T, E), k = logits.device, logits.shape, routing.top_k
    if not 0 < k <= min(E, MAX_TOP_K):
        raise EngineError(f"{k} experts of {E} were asked for; the kernels choose 1 to {MAX_TOP_K}")
    experts, weights = torch.empty(T, k, dtype=I32, device=device), torch.empty(T, k, device=device)
    launch(
        kernel("route.cu", "route", device.index),
        device,
        (T,),
        32,
        address(logits, device, F32, T, E),
        address(bias, device, F32, E),
        experts.data_ptr(),
        weights.data_ptr(),
        float(routing.scale),
        int(routing.scoring == "sigmoid"),
        int(routing.norm_topk),
        E,
        k,
    )
    return experts, weights


def _packed(weight: PackedExperts, device: torch.device) -> int:
    if weight.native:
        raise EngineError("these experts are packed for native-amx/1, which is a profile of CPUs")
    shape = weight.slots, -(-weight.rows // PANEL), weight.columns // 2, PANEL, 2
    return address(weight.data, device, BF16, *shape)


def experts(x: Tensor, pairs: Pairs, gate_up: PackedExperts, down: PackedExperts) -> Tensor:
    device, (R, H), inner, P, S = x.device, x.shape, down.columns, len(pairs.rows), down.slots
    require_multiple("the width of an expert", inner, PANEL)
    require_multiple("the width of a layer with experts", H, LANES)
    found = (gate_up.rows, gate_up.columns, down.rows, gate_up.slots)
    if found != (2 * inner, H, H, S):
        raise EngineError(f"{S} experts of {inner} inner values do not fit rows of {H}: {found}")
    y = torch.empty(P, H, device=device)
    rows = address(pairs.rows, device, I32, P)
    address(pairs.slots, device, I32, P)
    panels = _packed(gate_up, device), _packed(down, device)
    if not P:
        return y
    tall = next((n for n in (1, 2, 4) if 16 * n * S >= P), 8)  # rows of a thread, for slots of even shares
    order = torch.argsort(pairs.slots, stable=True)
    ends = torch.searchsorted(pairs.slots[order], torch.arange(S, dtype=I32, device=device), right=True)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    tile_ends = torch.cumsum((counts + (16 * tall - 1)) // (16 * tall), 0)
    tiles = P // (16 * tall) + min(S, P)  # each slot may have one that is not full
    places = order.data_ptr(), ends.data_ptr(), tile_ends.data_ptr()
    sums = kernel("experts.cu", "expert_sums", device.index, TM=tall)
    both = torch.empty(P, 2 * inner, device=device)
    gated = torch.empty(P, inner, dtype=BF16, device=device)
    grid = -(-2 * inner // _COLUMNS), tiles
    launch(
        sums,
        device,
        grid,
        256,
        address(x, device, BF16, R, H),
        rows,
        *places,
        panels[0],
        both.data_ptr(),
        S,
        2 * inner,
        H,
    )
    finish = kernel("linear.cu", "finish_silu_mul", device.index, TM=1)
    launch(finish, device, (P, -(-inner // 256)), 256, both.data_ptr(), gated.data_ptr(), 1, P, inner)
    grid = -(-H // _COLUMNS), tiles
    launch(sums, device, grid, 256, gated.data_ptr(), 0, *places, panels[1], y.data_ptr(), S, H, inner)
    return y


def combine(rows: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor) -> Tensor:
    device, (T, k, H) = rows.device, rows.shape
    out = torch.empty(T, H, device=device)
    launch(
        kernel("route.cu", "combine", device.index),
        device,
        (T, -(-H // 256)),
        256,
        address(rows, device, F32, T, k, H),
        address(weights, device, F32, T, k),
        address(shared, device, F32, T, H),
        address(residual, device, F32, T, H),
        out.data_ptr(),
        k,
        H,
    )
    return out
