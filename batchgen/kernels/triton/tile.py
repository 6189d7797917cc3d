"""The tensor-core matrix product in plain Triton: K ascending through one float32 accumulator, whatever the tile."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from batchgen.kernels.triton.launch import begin, options
from batchgen.kernels.triton.rows import silu_times

_LINE = 64  # bf16 elements of one 128-byte line


class Tile(NamedTuple):
    """How one program is cut. No bit of a result depends on it: the GPU tests compare them all."""

    m: int  # rows of x
    n: int  # rows of the weight
    k: int
    warps: int
    stages: int
    lines: int = 0  # 128-byte lines of its weights that a program asks the L2 cache for before it may start


@triton.jit
def _prefetch(W, first, last, LINES: tl.constexpr, LINE: tl.constexpr):
    at = tl.minimum(first + tl.arange(0, LINES) * LINE, last)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [(W + at).to(tl.uint64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["M"])
def _product(
    X, W, Y, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    GATED: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Y = X W^T; GATED: W is gate [N, K] above up [N, K], and Y = silu(X gate^T) * (X up^T), both rounded first."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    if PDL and LINES:
        first = tl.program_id(1).to(tl.int64) * BN * K
        _prefetch(W, first, N.to(tl.int64) * K - LINE, LINES, LINE)
        if GATED:
            _prefetch(W + N.to(tl.int64) * K, first, N.to(tl.int64) * K - LINE, LINES, LINE)
    begin(PDL)
    is_m, is_n = m < M, n < N
    x = X + m.to(tl.int64)[:, None] * K + k[None, :]
    w = W + n.to(tl.int64)[:, None] * K + k[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    acc_up = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, K, BK):
        is_x, is_w = is_m[:, None], is_n[:, None]
        if not EVEN_K:
            is_x, is_w = is_x & (k0 + k < K)[None, :], is_w & (k0 + k < K)[None, :]
        a = tl.load(x, mask=is_x, other=0.0)
        if EVEN_N and EVEN_K:
            b = tl.load(w)
        else:
            b = tl.load(w, mask=is_w, other=0.0)
        acc = tl.dot(a, tl.trans(b), acc)
        if GATED:
            up = w + N.to(tl.int64) * K
            if EVEN_N and EVEN_K:
                c = tl.load(up)
            else:
                c = tl.load(up, mask=is_w, other=0.0)
            acc_up = tl.dot(a, tl.trans(c), acc_up)
        x += BK
        w += BK
    if GATED:
        acc = silu_times(acc.to(tl.bfloat16).to(tl.float32), acc_up.to(tl.bfloat16).to(tl.float32))
    y = Y + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y, acc.to(Y.dtype.element_ty), mask=is_m[:, None] & is_n[None, :])


def product(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, tile: Tile, *, gated: bool = False
) -> torch.Tensor:
    """Into `out`: x weight^T, or, `gated`, silu(gate) * up of it.

    x bf16 [M, K]; weight bf16 [N, K], or [2 N, K] where gated; out bf16 or float32 [M, N], returned. No checks.
    """
    M, N = out.shape
    K = x.shape[1]
    if M and N:
        grid = (triton.cdiv(M, tile.m), triton.cdiv(N, tile.n))
        _product[grid](
            x, weight, out, M, N, K, tile.m, tile.n, tile.k, N % tile.n == 0, K % tile.k == 0, gated, tile.lines, _LINE,
            num_warps=tile.warps, num_stages=tile.stages, **options(x),
        )  # fmt: skip
    return out
