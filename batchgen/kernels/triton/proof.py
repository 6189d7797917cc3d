"""The proof that no implementation of a linear can be seen in its bits, on the device at hand."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from batchgen.kernels.triton.linear import run_linear, run_linear_silu_mul
from batchgen.kernels.triton.rows import silu_mul
from batchgen.kernels.triton.tuning import PLAIN, table_of

_BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
_JUDGE = PLAIN[0][1]  # one tile at every M, so that a row's bits follow from the row alone


class Refused(NamedTuple):
    """An implementation whose bytes differed from plain Triton's; plain Triton stands in for it from now on."""

    op: str
    shape: tuple[int, int]  # N, K
    rows: int  # M
    differing: int  # elements


def prove(weight_shapes: Iterable[tuple[str, int, int]], Ms: Sequence[int], device: torch.device) -> list[Refused]:
    """Compare what the table chooses for each shape at each M with plain Triton, bit by bit.

    weight_shapes: (op, N, K), op one of tuning.OPS. A difference takes the rule's whole range of M away from the
    implementation that made it, for this process and device, and is returned.
    """
    found = []
    for op, N, K in dict.fromkeys(weight_shapes):
        x, weight = spread_data(max(Ms), N, K, device)
        expected = _judged(op, x, weight)
        for M in sorted(set(Ms)):
            y = _chosen(op, x[:M], weight)
            if not torch.equal(bits(y), bits(expected[:M])):
                found.append(Refused(op, (N, K), M, int((bits(y) != bits(expected[:M])).sum())))
                table_of(x.device).refuse(op, N, K, M)  # its device has an index, the one given may have none
    return found


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers, so that -0 is not 0 and NaN is NaN."""
    return x.view(_BITS[x.dtype])


def spread_data(M: int, N: int, K: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """x bf16 [M, K] and weight bf16 [N, K] on which another order of additions shows.

    Row scales over six orders of magnitude and some columns a hundred times larger than the rest.
    """
    generator = torch.Generator(device).manual_seed(N * 1_000_003 + K)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    x = normal(M, K) * torch.logspace(-3, 3, M, device=device, dtype=torch.bfloat16)[:, None]
    weight = normal(N, K) * 0.05
    x[:, 3::97] *= 100
    weight[:, 5::61] *= 20
    return x, weight


def _judged(op: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if op == "logits" else torch.bfloat16
    y = run_linear(x, weight, _JUDGE, dtype)
    return silu_mul(y) if op == "linear_silu_mul" else y


def _chosen(op: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    choice = table_of(x.device).choose(op, weight.shape[0], x.shape[1], x.shape[0])
    if op == "linear_silu_mul":
        return run_linear_silu_mul(x, weight, choice)
    return run_linear(x, weight, choice, torch.float32 if op == "logits" else torch.bfloat16)
