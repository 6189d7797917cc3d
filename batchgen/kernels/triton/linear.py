"""y = x W^T on the tensor cores: one K order through one float32 accumulator, rounded once.

Which implementation runs follows the shape and M by a tuned table; it cannot be seen in the bits (tuning.py).
"""

import torch

from batchgen.errors import EngineError
from batchgen.kernels.triton.checks import check, padded, room
from batchgen.kernels.triton.rows import silu_mul
from batchgen.kernels.triton.tile import Tile, product
from batchgen.kernels.triton.tuning import Choice, Library, table_of
from batchgen.kernels.triton.wide import Wide, gated_product

_DEPTH = 16  # what one matrix instruction adds, and what keeps rows of x and W aligned for 16-byte loads


def linear(x: torch.Tensor, weight: torch.Tensor, *, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """x weight^T.  x bf16 [M, K], weight bf16 [N, K] -> bf16 [M, N], or float32 where `dtype` says so (logits)."""
    N = _checked(x, weight)
    if dtype not in (torch.bfloat16, torch.float32):
        raise EngineError(f"a linear's output is bfloat16 or float32, not {dtype}")
    op = "logits" if dtype == torch.float32 else "linear"
    return run_linear(x, weight, table_of(x.device).choose(op, N, x.shape[1], x.shape[0]), dtype)


def linear_silu_mul(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu_mul(linear(x, weight)), the same bits, in one kernel where that is faster.

    x bf16 [M, K], weight bf16 [2 I, K], gate above up -> bf16 [M, I].
    """
    N = _checked(x, weight)
    if N % 2:
        raise EngineError(f"gate and up are {N} rows together; they must be of one height")
    return run_linear_silu_mul(x, weight, table_of(x.device).choose("linear_silu_mul", N, x.shape[1], x.shape[0]))


def run_linear(x: torch.Tensor, weight: torch.Tensor, choice: Choice, dtype: torch.dtype) -> torch.Tensor:
    """The linear by a given implementation; for proofs and tuning. Nothing is checked."""
    M = x.shape[0]
    if isinstance(choice, Tile):
        out = torch.empty(M, weight.shape[0], dtype=dtype, device=x.device)
        return product(x, weight, out, choice)
    assert isinstance(choice, Library), "a table's rules for this op name no other"
    x = padded(x, choice.rows)
    if dtype == torch.float32:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)[:M]
    return torch.mm(x, weight.t())[:M]


def run_linear_silu_mul(x: torch.Tensor, weight: torch.Tensor, choice: Choice) -> torch.Tensor:
    """The gated linear by a given implementation; for proofs and tuning. Nothing is checked."""
    if not isinstance(choice, Tile | Wide):
        return silu_mul(linear(x, weight))
    out = room(x.shape[0], weight.shape[0] // 2, x)
    if isinstance(choice, Wide):
        return gated_product(x, weight, out, choice)
    return product(x, weight, out, choice, gated=True)


def _checked(x: torch.Tensor, weight: torch.Tensor) -> int:
    M, K = x.shape
    N = weight.shape[0]
    check("x", x, torch.bfloat16, M, K)
    check("the weight", weight, torch.bfloat16, N, K)
    if K % _DEPTH or weight.device != x.device:
        raise EngineError(
            f"x on {x.device}, the weight on {weight.device}, {K} inputs: one device, a multiple of {_DEPTH}"
        )
    return N
