"""The grouped matrix product in plain Triton: each tile's rows by its slot's weight, K ascending as in tile.py.

Weights, and rows that lie in order, come through the bulk copy engine (compute capability 9.0 on).
"""

from functools import cache
from typing import NamedTuple

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
    programs: int = 0  # on each multiprocessor, for as many tiles as there are; 0: one for each tile
    is_flat: bool = False  # the next tile's loads begin under the end of this one


@triton.jit
def _grouped(
    X, W, Y, ROWS, ORDER, TILES, USED, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN_K: tl.constexpr, GATED: tl.constexpr,
    FLAT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """GATED: from gathered rows of X to places of Y: silu(gate) * up; else from places of X to scattered rows of Y.

    W: a descriptor of [S N, K], or of [S 2 N, K] where GATED; X: unless GATED, one of [places, K].
    """
    blocks = tl.cdiv(N, BN)
    k = tl.arange(0, BK)
    begin(PDL)
    for job in tl.range(tl.program_id(0), tl.load(USED) * blocks, tl.num_programs(0), flatten=FLAT):
        tile, n0 = job // blocks, job % blocks * BN
        slot, first, end = tl.load(TILES + tile * 3), tl.load(TILES + tile * 3 + 1), tl.load(TILES + tile * 3 + 2)
        m, n = first + tl.arange(0, BM), n0 + tl.arange(0, BN)
        place = tl.minimum(m, end - 1)  # rows past the last are not stored
        w = slot * (2 * N if GATED else N) + n0
        if GATED:
            x = X + tl.load(ROWS + place).to(tl.int64)[:, None] * K + k[None, :]
        acc = tl.zeros([BM, BN], tl.float32)
        acc_up = tl.zeros([BM, BN], tl.float32)
        for k0 in range(0, K, BK):
            if not GATED:
                a = X.load([first, k0])
            elif EVEN_K:
                a = tl.load(x + k0)
            else:
                a = tl.load(x + k0, mask=(k0 + k < K)[None, :], other=0.0)
            acc = tl.dot(a, tl.trans(W.load([w, k0])), acc)
            if GATED:
                acc_up = tl.dot(a, tl.trans(W.load([w + N, k0])), acc_up)
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
    jobs = len(found.tiles) * triton.cdiv(N, cut.n)
    if cut.programs:
        jobs = min(jobs, cut.programs * _multiprocessors(x.device))
    _grouped[(jobs,)](
        x if gated else TensorDescriptor(x, list(x.shape), [K, 1], [m, cut.k]),
        TensorDescriptor(weight, [weight.numel() // K, K], [K, 1], [cut.n, cut.k]),
        out, *found, N, K, m, cut.n, cut.k, K % cut.k == 0, gated, cut.is_flat,
        num_warps=cut.warps, num_stages=cut.stages, **options(like),
    )  # fmt: skip


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
