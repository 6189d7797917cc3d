"""The gated product of many rows, its operands brought by the copy engine (compute capability 9.0 on).

Gate and up rows of the weight enter one matrix instruction side by side, so that it is as large as the ungated
product's, and silu(gate) * up is made from the accumulator. K ascends through one float32 accumulator, as in tile.py.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from batchgen.kernels.triton.rows import silu_times

_GROUP = 8  # tiles of rows that walk along the weight together, so that its rows are found in the L2 cache


class Wide(NamedTuple):
    """How one program is cut. No bit of a result depends on it: the GPU tests compare them with plain tiles."""

    m: int  # rows of x
    n: int  # rows of gate, and as many of up
    k: int
    warps: int
    stages: int
    flat: bool  # the next tile's loads begin under the end of this one


@triton.jit(do_not_specialize=["M"])
def _wide(X, W, Y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr, FLAT: tl.constexpr):
    """Y [M, N] = silu(X gate^T) * (X up^T), both rounded first; X, Y and W [2, N, K] are descriptors."""
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLAT):
        first, within = tile // (G * tiles_n) * G, tile % (G * tiles_n)
        height = tl.minimum(tiles_m - first, G)
        m, n = (first + within % height) * BM, within // height * BN
        acc = tl.zeros([BM, 2 * BN], tl.float32)
        for k in range(tl.cdiv(K, BK)):
            a = X.load([m, k * BK])
            b = W.load([0, n, k * BK]).reshape(2 * BN, BK)
            acc = tl.dot(a, b.T, acc)
        gate, up = acc.reshape(BM, 2, BN).permute(0, 2, 1).split()
        y = silu_times(gate.to(tl.bfloat16).to(tl.float32), up.to(tl.bfloat16).to(tl.float32))
        Y.store([m, n], y.to(tl.bfloat16))


def gated_product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, wide: Wide) -> torch.Tensor:
    """Into `out`: silu(gate) * up of x weight^T.

    x bf16 [M, K]; weight bf16 [2 N, K], gate above up; out bf16 [M, N], returned. No checks.
    """
    (M, K), N = x.shape, out.shape[1]
    if M and N:
        tiles = triton.cdiv(M, wide.m) * triton.cdiv(N, wide.n)
        _wide[(min(tiles, _multiprocessors(x.device)),)](
            TensorDescriptor(x, [M, K], [K, 1], [wide.m, wide.k]),
            TensorDescriptor(weight, [2, N, K], [N * K, K, 1], [2, wide.n, wide.k]),
            TensorDescriptor(out, [M, N], [N, 1], [wide.m, wide.n]),
            M, N, K, wide.m, wide.n, wide.k, _GROUP, wide.flat, num_warps=wide.warps, num_stages=wide.stages,
        )  # fmt: skip
    return out


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
