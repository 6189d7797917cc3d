"""The answers of a token's experts as one row. One program a part of a row, in one shape."""

import torch
import triton
import triton.language as tl

from batchgen.kernels.triton.checks import check, room
from batchgen.kernels.triton.launch import begin, options

_CHUNK = 1024  # elements of one program


@triton.jit
def _combine(
    ROWS, WEIGHTS, SHARED, OUT, WIDTH, TOP: tl.constexpr, BLOCK: tl.constexpr, HAS_SHARED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < WIDTH
    begin(PDL)
    acc = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(TOP):
        weight = tl.load(WEIGHTS + row * TOP + j)
        y = tl.load(ROWS + (row * TOP + j) * WIDTH + i, mask=ok, other=0.0).to(tl.float32)
        acc = tl.fma(tl.zeros_like(y) + weight, y, acc)
    if HAS_SHARED:
        acc += tl.load(SHARED + row * WIDTH + i, mask=ok, other=0.0).to(tl.float32)
    tl.store(OUT + row * WIDTH + i, acc.to(tl.bfloat16), mask=ok)


def combine(rows: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
    """The sum from +0 over j ascending of fma(weights[j], rows[j], sum), then the shared expert's row; rounded once.

    rows bf16 [T, k, H], weights float32 [T, k], shared bf16 [T, H] -> bf16 [T, H].
    """
    T, k, H = rows.shape
    check("the experts' rows", rows, torch.bfloat16, T, k, H)
    check("the experts' weights", weights, torch.float32, T, k)
    if shared is not None:
        check("the shared expert's rows", shared, torch.bfloat16, T, H)
    out = room(T, H, rows)
    if T:
        _combine[(T, triton.cdiv(H, _CHUNK))](
            rows, weights, rows if shared is None else shared, out, H, k, _CHUNK, shared is not None,
            num_warps=4, **options(rows),
        )  # fmt: skip
    return out
