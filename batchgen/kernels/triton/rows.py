"""Ops of single rows: norms, the gated activation, embedding. One program a row (or a part of one), in one shape.

No program sees more than one row, and its shape follows the width alone: a row's bits do not depend on T.
"""

import torch
import triton
import triton.language as tl

from batchgen.errors import EngineError
from batchgen.kernels.triton.checks import check, room
from batchgen.kernels.triton.launch import begin, options

MAX_WIDTH = 16384  # one row of a norm stays in one program's registers
_CHUNK = 1024  # elements of one program of the ops without a reduction

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def silu_times(gate, up):
    """silu(gate) * up, float32; what the fused linear uses too."""
    return gate / (1.0 + tl.exp2(-gate * LOG2_E)) * up


@triton.jit
def _rms_norm(H, Y, W, OUT, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    ok = i < WIDTH
    w = tl.load(W + i, mask=ok, other=0.0)
    begin(PDL)
    h = tl.load(H + row * WIDTH + i, mask=ok, other=0.0)
    if ADD:
        h += tl.load(Y + row * WIDTH + i, mask=ok, other=0.0).to(tl.float32)
        tl.store(H + row * WIDTH + i, h, mask=ok)
    mean = tl.sum(h * h, 0) / WIDTH
    inverse = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    tl.store(OUT + row * WIDTH + i, (h * inverse * w).to(tl.bfloat16), mask=ok)


def add_rms_norm(h: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """h += y in place (where y is given), then h / rms(h) * weight.

    h float32 [T, H], y bf16 [T, H], weight float32 [H] -> bf16 [T, H].
    """
    T, H = h.shape
    check("h", h, torch.float32, T, H)
    check("the norm's weight", weight, torch.float32, H)
    if y is not None:
        check("y", y, torch.bfloat16, T, H)
    if H > MAX_WIDTH:
        raise EngineError(f"the width of a norm is {H}; the kernel takes {MAX_WIDTH} at most")
    out = room(T, H, h)
    block = triton.next_power_of_2(H)
    if T:
        warps = max(1, min(16, block // 512))
        _rms_norm[(T,)](
            h, h if y is None else y, weight, out, eps, H, block, y is not None, num_warps=warps, **options(h)
        )
    return out


@triton.jit
def _silu_mul(X, OUT, WIDTH, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < WIDTH
    gate = tl.load(X + row * 2 * WIDTH + i, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(X + row * 2 * WIDTH + WIDTH + i, mask=ok, other=0.0).to(tl.float32)
    tl.store(OUT + row * WIDTH + i, silu_times(gate, up).to(tl.bfloat16), mask=ok)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up.  x bf16 [T, 2 I], gate before up -> bf16 [T, I]."""
    T, double = x.shape
    check("x", x, torch.bfloat16, T, double)
    if double % 2:
        raise EngineError(f"the width of silu_mul's input is {double}; it must be even")
    out = room(T, double // 2, x)
    if T:
        grid = (T, triton.cdiv(double // 2, _CHUNK))
        _silu_mul[grid](x, out, double // 2, _CHUNK, num_warps=4, **options(x))
    return out


@triton.jit
def _embedding(IDS, TABLE, OUT, WIDTH, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < WIDTH
    id = tl.load(IDS + row).to(tl.int64)
    tl.store(OUT + row * WIDTH + i, tl.load(TABLE + id * WIDTH + i, mask=ok, other=0.0).to(tl.float32), mask=ok)


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the table.  ids int32 [T], table bf16 [V, H] -> float32 [T, H]."""
    T, H = len(ids), table.shape[1]
    check("ids", ids, torch.int32, T)
    check("the table", table, torch.bfloat16, table.shape[0], H)
    out = torch.empty(T, H, dtype=torch.float32, device=table.device)
    if T:
        _embedding[(T, triton.cdiv(H, _CHUNK))](ids, table, out, H, _CHUNK, num_warps=4, **options(ids))
    return out
