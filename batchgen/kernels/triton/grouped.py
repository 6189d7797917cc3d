"""The grouped matrix product in plain Triton: each tile's rows by its slot's weight, K ascending as in tile.py."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from batchgen.kernels.triton.launch import begin, options
from batchgen.kernels.triton.pairs import Sorted
from batchgen.kernels.triton.rows import silu_times


class Cut(NamedTuple):
    """How one program is cut. No bit of a result depends on it: the GPU tests compare them."""

    n: int  # rows of the weight; of gate, and as many of up
    k: int
    warps: int
    stages: int
    bulk: bool = False  # what lies in whole blocks comes through the bulk copy engine: weights, and rows by place


@triton.jit
def _block(W, at, n, N, k0, K, first, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, BULK: tl.constexpr):
    """Rows of a weight, [BN, BK], columns from k0 on: by pointers `at`, or (BULK) by a descriptor, from `first` on."""
    if BULK:
        block = W.load([first, k0])
    elif EVEN:
        block = tl.load(at)
    else:
        block = tl.load(at, mask=(n < N)[:, None] & (k0 + tl.arange(0, BK) < K)[None, :], other=0.0)
    return block


@triton.jit
def _grouped(
    X, W, Y, ROWS, ORDER, TILES, USED, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, EVEN_K: tl.constexpr,
    GATED: tl.constexpr, BULK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """GATED: from gathered rows of X to places of Y: silu(gate) * up; else from places of X to scattered rows of Y.

    W: [S N, K], or [S 2 N, K] where GATED; where BULK, W (and X unless GATED) are descriptors.
    """
    blocks = tl.cdiv(N, BN)
    tile, n0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BN
    begin(PDL)
    if tile >= tl.load(USED):
        return
    slot, first, end = tl.load(TILES + tile * 3), tl.load(TILES + tile * 3 + 1), tl.load(TILES + tile * 3 + 2)
    m = first + tl.arange(0, BM)
    place = tl.minimum(m, end - 1)  # rows past the last are not stored
    n, k = n0 + tl.arange(0, BN), tl.arange(0, BK)
    top = slot * (2 * N if GATED else N) + n0
    if GATED or not BULK:
        row = tl.load(ROWS + place) if GATED else place
        x = X + row.to(tl.int64)[:, None] * K + k[None, :]
    if not BULK:
        w = W + (slot.to(tl.int64) * (2 * N if GATED else N) + n)[:, None] * K + k[None, :]
        up = w + N.to(tl.int64) * K
    else:
        w, up = 0, 0
    acc = tl.zeros([BM, BN], tl.float32)
    acc_up = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, K, BK):
        if BULK and not GATED:
            a = X.load([first, k0])
        elif EVEN_K:
            a = tl.load(x)
        else:
            a = tl.load(x, mask=(k0 + k < K)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(_block(W, w, n, N, k0, K, top, BN, BK, EVEN, BULK)), acc)
        if GATED:
            acc_up = tl.dot(a, tl.trans(_block(W, up, n, N, k0, K, top + N, BN, BK, EVEN, BULK)), acc_up)
        if GATED or not BULK:
            x += BK
        if not BULK:
            w += BK
            up += BK
    if GATED:
        acc = silu_times(acc.to(tl.bfloat16).to(tl.float32), acc_up.to(tl.bfloat16).to(tl.float32))
        to = m
    else:
        to = tl.load(ORDER + place)
    y = Y + to.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y, acc.to(Y.dtype.element_ty), mask=(m < end)[:, None] & (n < N)[None, :])


def grouped(
    x: torch.Tensor,
    weight: torch.Tensor,
    found: Sorted,
    out: torch.Tensor,
    how: tuple[int, Cut],
    *,
    gated: bool = False,
    like: torch.Tensor,
) -> None:
    """Into `out` bf16 [P, N]; by places from x bf16 [R, K] where `gated`, else by pairs from x bf16 [P, K], by places.

    weight bf16 [S, N, K], or gate above up [S, 2 N, K] where gated; `how`: the pairs of a tile, and the rest of it;
    `like`: the rows that tell how the step is launched. No checks.
    """
    (m, cut), (N, K) = how, (out.shape[1], x.shape[1])
    rows, columns = x, weight.view(-1, K)
    if cut.bulk:
        columns = _described(columns, cut.n, cut.k)
        rows = x if gated else _described(x, m, cut.k)
    even = N % cut.n == 0 and K % cut.k == 0
    _grouped[(len(found.tiles) * triton.cdiv(N, cut.n),)](
        rows, columns, out, *found, N, K, m, cut.n, cut.k, even, K % cut.k == 0, gated, cut.bulk,
        num_warps=cut.warps, num_stages=cut.stages, **options(like),
    )  # fmt: skip


def _described(x: torch.Tensor, rows: int, columns: int) -> Any:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
