"""Linear, row ops and attention on a GPU: checks what it is given, then launches."""

import math
from typing import Any

import torch

from batchgen.errors import EngineError
from batchgen.kernels.constants import BLOCK_SIZE, K_BLOCK, LANES, MAX_HEAD_DIM, PANEL
from batchgen.kernels.cuda.compiled import kernel, launch
from batchgen.kernels.packing import PackedWeight

Tensor = torch.Tensor
F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64

_TILE_COLUMNS = 64
_MAX_HEADS_A_WARP = 4  # query heads of one token for which one warp of attention reads a block
_WARPS = 4


def address(tensor: Tensor | None, device: torch.device, dtype: torch.dtype, *shape: int) -> int:
    """Where the data lies; 0 for None. Raises EngineError unless device, dtype, shape and layout are as said."""
    if tensor is None:
        return 0
    if tensor.device != device or tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        found = f"{tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()} on {tensor.device}"
        raise EngineError(f"a kernel wants contiguous {dtype} {shape} on {device}, got {found}")
    return tensor.data_ptr()


def aligned(tensor: Tensor, device: torch.device, dtype: torch.dtype, *shape: int) -> int:
    """`address`, of data that starts at a multiple of 16 bytes, which is what some kernels load at once."""
    place = address(tensor, device, dtype, *shape)
    if place % 16:
        raise EngineError(f"a kernel wants a tensor that starts at a multiple of 16 bytes, got {place % 16} beyond one")
    return place


def require_multiple(name: str, value: int, multiple: int) -> None:
    """Raises EngineError unless `value` is a multiple."""
    if value % multiple:
        raise EngineError(f"{name} is {value}; the kernels take multiples of {multiple}")


def _packed(weight: PackedWeight, device: torch.device) -> int:
    if weight.native:
        raise EngineError("this weight is packed for native-amx/1, which is a profile of CPUs")
    return address(weight.data, device, BF16, -(-weight.rows // PANEL), weight.columns // 2, PANEL, 2)


def _kernel(file: str, name: str, device: torch.device, **macros: int) -> Any:
    return kernel(file, name, device.index, **macros)


def _sums(x: Tensor, weight: PackedWeight, out: Tensor | None) -> tuple[Tensor, int]:
    """Sums over runs of K-blocks, float32 [runs, M, N], and how many runs: one run where the tiles fill the device.

    Where there is one run and `out` is given, the sums are in it.
    """
    device, M, N, K = x.device, x.shape[0], weight.rows, weight.columns
    columns, blocks = -(-N // _TILE_COLUMNS), -(-K // K_BLOCK)
    rows = next((n for n in (1, 2, 4) if 16 * n >= M), 8)
    if rows == 8 and columns * -(-M // 128) < 264:
        rows = 4
    tiles = -(-M // (16 * rows))
    runs = blocks if columns * tiles < 264 and M <= 128 else 1
    sums = out if out is not None and runs == 1 else torch.empty(runs, M, N, device=device)
    launch(
        _kernel("linear.cu", "sums", device, TM=rows),
        device,
        (columns, tiles, runs),
        256,
        address(x, device, BF16, M, K),
        _packed(weight, device),
        sums.data_ptr(),
        M,
        N,
        K,
        -(-blocks // runs),
    )
    return sums, runs


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None, residual: Tensor | None, out: Tensor | None) -> Tensor:
    device, M, N = x.device, x.shape[0], weight.rows
    y = torch.empty(M, N, device=device) if out is None else out
    places = (
        address(bias, device, F32, N),
        address(residual, device, F32, M, N),
        address(y, device, F32, M, N),
    )
    sums, runs = _sums(x, weight, y if bias is None and residual is None else None)
    if sums is not y:
        finish = _kernel("linear.cu", "finish", device, TM=1)
        launch(finish, device, (M, -(-N // 256)), 256, sums.data_ptr(), *places, runs, M, N)
    return y


def linear_silu_mul(x: Tensor, weight: PackedWeight) -> Tensor:
    device, M, width = x.device, x.shape[0], weight.rows // 2
    require_multiple("the width of silu_mul", width, PANEL)
    out = torch.empty(M, width, dtype=BF16, device=device)
    sums, runs = _sums(x, weight, None)
    finish = _kernel("linear.cu", "finish_silu_mul", device, TM=1)
    launch(finish, device, (M, -(-width // 256)), 256, sums.data_ptr(), out.data_ptr(), runs, M, width)
    return out


def embedding(ids: Tensor, table: PackedWeight) -> Tensor:
    device, T, H = ids.device, len(ids), table.columns
    out = torch.empty(T, H, device=device)
    places = (address(ids, device, I32, T), _packed(table, device), out.data_ptr())
    launch(_kernel("embedding.cu", "embedding", device), device, (T,), 128, *places, H)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    device, (T, H) = x.device, x.shape
    require_multiple("the width of a norm", H, LANES)
    out = torch.empty(T, H, dtype=BF16, device=device)
    places = (aligned(x, device, F32, T, H), aligned(weight, device, F32, H), out.data_ptr())
    launch(_kernel("rms_norm.cu", "rms_norm", device), device, (T,), 128, *places, float(eps), H)
    return out


def _check_head(D: int) -> None:
    require_multiple("head_dim", D, 2 * LANES)
    if D > MAX_HEAD_DIM:
        raise EngineError(f"head_dim is {D}; the kernels take {MAX_HEAD_DIM} at most")


def _cache(cache: tuple[Tensor, Tensor], device: torch.device, Hk: int, D: int) -> tuple[int, int]:
    blocks = cache[0].shape[0]
    return (
        address(cache[0], device, BF16, blocks, Hk, D // 2, BLOCK_SIZE, 2),
        address(cache[1], device, BF16, blocks, Hk, BLOCK_SIZE // 2, D, 2),
    )


def rotary_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rotary: tuple[Tensor, Tensor],
    place: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    device, (T, width) = qkv.device, qkv.shape
    Hk, D = cache[1].shape[1], cache[1].shape[3]
    Hq = width // D - 2 * Hk
    _check_head(D)
    q = torch.empty(T, Hq, D, dtype=BF16, device=device)
    q_norm, k_norm = norms or (None, None)
    angles = len(rotary[0])
    launch(
        _kernel("rotary_store.cu", "rotary_store", device, HEAD_DIM=D),
        device,
        (T, -(-(Hq + 2 * Hk) // 8)),
        128,
        address(qkv, device, F32, T, (Hq + 2 * Hk) * D),
        address(q_norm, device, F32, D),
        address(k_norm, device, F32, D),
        address(rotary[0], device, F32, angles, D // 2),
        address(rotary[1], device, F32, angles, D // 2),
        address(place[0], device, I32, T),
        address(place[1], device, I64, T),
        q.data_ptr(),
        *_cache(cache, device, Hk, D),
        float(eps),
        Hq,
        Hk,
    )
    return q


def attention(
    q: Tensor, cache: tuple[Tensor, Tensor], block_tables: Tensor, query_start: Tensor, positions: Tensor
) -> Tensor:
    device, (T, Hq, D) = q.device, q.shape
    Hk = cache[1].shape[1]
    _check_head(D)
    require_multiple("the number of query heads", Hq, Hk)
    S, blocks = block_tables.shape
    out = torch.empty(T, Hq * D, dtype=BF16, device=device)
    rows = min(Hq // Hk, _MAX_HEADS_A_WARP)
    tasks = T * Hk * -(-(Hq // Hk) // rows)
    launch(
        _kernel("attention.cu", "attention", device, HEAD_DIM=D, ROWS=rows),
        device,
        (-(-tasks // _WARPS),),
        32 * _WARPS,
        address(q, device, BF16, T, Hq, D),
        *_cache(cache, device, Hk, D),
        address(block_tables, device, I32, S, blocks),
        address(query_start, device, I32, S + 1),
        address(positions, device, I32, T),
        out.data_ptr(),
        1 / math.sqrt(D),
        T,
        S,
        blocks,
        Hq,
        Hk,
    )
    return out
