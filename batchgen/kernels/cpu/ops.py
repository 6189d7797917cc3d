"""Linear, row ops and attention on a CPU."""

import math

import torch

from batchgen.errors import EngineError
from batchgen.kernels.constants import BLOCK_SIZE, LANES, MAX_HEAD_DIM, PANEL, TILE_K
from batchgen.kernels.cpu.native import address, library, require_multiple, require_native
from batchgen.kernels.packing import PackedWeight

Tensor = torch.Tensor
F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64


def _packed(weight: PackedWeight) -> int:
    if weight.native:
        require_native()
        require_multiple("the inputs of a linear", weight.columns, TILE_K)
    return address(weight.data, BF16, -(-weight.rows // PANEL), weight.columns // 2, PANEL, 2)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None, residual: Tensor | None, out: Tensor | None) -> Tensor:
    M, N, K = x.shape[0], weight.rows, weight.columns
    y = torch.empty(M, N) if out is None else out
    library().linear(
        address(x, BF16, M, K),
        _packed(weight),
        address(bias, F32, N),
        address(residual, F32, M, N),
        address(y, F32, M, N),
        M,
        N,
        K,
        weight.native,
    )
    return y


def embedding(ids: Tensor, table: PackedWeight) -> Tensor:
    T, H = len(ids), table.columns
    out = torch.empty(T, H)
    library().embed(address(ids, I32, T), _packed(table), out.data_ptr(), T, H)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    T, H = x.shape
    require_multiple("the width of a norm", H, LANES)
    out = torch.empty(T, H, dtype=BF16)
    library().rms_norm(address(x, F32, T, H), address(weight, F32, H), out.data_ptr(), eps, T, H)
    return out


def linear_silu_mul(x: Tensor, weight: PackedWeight) -> Tensor:
    M, K, width = x.shape[0], weight.columns, weight.rows // 2
    require_multiple("the width of silu_mul", width, PANEL)
    out = torch.empty(M, width, dtype=BF16)
    library().linear_silu_mul(address(x, BF16, M, K), _packed(weight), out.data_ptr(), M, width, K, weight.native)
    return out


def _check_head(D: int) -> None:
    require_multiple("head_dim", D, 2 * LANES)
    if D > MAX_HEAD_DIM:
        raise EngineError(f"head_dim is {D}; the kernels take {MAX_HEAD_DIM} at most")


def _cache(cache: tuple[Tensor, Tensor], Hk: int, D: int) -> tuple[int, int]:
    blocks = cache[0].shape[0]
    return (
        address(cache[0], BF16, blocks, Hk, D // 2, BLOCK_SIZE, 2),
        address(cache[1], BF16, blocks, Hk, BLOCK_SIZE // 2, D, 2),
    )


def rotary_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rotary: tuple[Tensor, Tensor],
    place: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    T, width = qkv.shape
    Hk, D = cache[1].shape[1], cache[1].shape[3]
    Hq = width // D - 2 * Hk
    _check_head(D)
    q = torch.empty(T, Hq, D, dtype=BF16)
    q_norm, k_norm = norms or (None, None)
    angles = len(rotary[0])
    library().rotary_store(
        address(qkv, F32, T, (Hq + 2 * Hk) * D),
        address(q_norm, F32, D),
        address(k_norm, F32, D),
        address(rotary[0], F32, angles, D // 2),
        address(rotary[1], F32, angles, D // 2),
        address(place[0], I32, T),
        address(place[1], I64, T),
        q.data_ptr(),
        *_cache(cache, Hk, D),
        eps,
        T,
        Hq,
        Hk,
        D,
    )
    return q


def attention(
    q: Tensor, cache: tuple[Tensor, Tensor], block_tables: Tensor, query_start: Tensor, positions: Tensor
) -> Tensor:
    T, Hq, D = q.shape
    Hk = cache[1].shape[1]
    _check_head(D)
    require_multiple("the number of query heads", Hq, Hk)
    S, blocks = block_tables.shape
    out = torch.empty(T, Hq * D, dtype=BF16)
    library().attention(
        address(q, BF16, T, Hq, D),
        *_cache(cache, Hk, D),
        address(block_tables, I32, S, blocks),
        address(query_start, I32, S + 1),
        address(positions, I32, T),
        out.data_ptr(),
        1 / math.sqrt(D),
        S,
        blocks,
        Hq,
        Hk,
        D,
    )
    return out
