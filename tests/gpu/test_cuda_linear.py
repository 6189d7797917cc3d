"""portable/1 on a GPU: the linears have the bits of the CPU, at every M, run or tile."""

from itertools import pairwise

import pytest
import torch
from support.bitwise import assert_bitwise
from support.on_gpu import GPU, nan_as_one, up

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import PackedWeight
from batchgen.kernels.packing import pack, unpack

pytestmark = GPU


def operands(M: int, N: int, K: int, seed: int = 0) -> tuple[torch.Tensor, PackedWeight]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(M, K, generator=random).to(torch.bfloat16)
    return x, pack((torch.randn(N, K, generator=random) * 0.1).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("M", "N", "K"),
    [
        *((1, 1, 2), (3, 31, 16), (2, 32, 254), (15, 33, 256), (16, 64, 258), (17, 65, 30), (29, 47, 512)),
        *((33, 96, 770), (64, 576, 1536), (65, 1536, 576), (129, 130, 1026), (300, 3072, 64), (1100, 2048, 300)),
    ],
)
def test_equals_the_cpu(M: int, N: int, K: int) -> None:
    x, weight = operands(M, N, K)
    expected = kernels.linear(x, weight)
    ours = kernels.linear(up(x), up(weight))
    assert_bitwise(ours, expected)
    assert_bitwise(kernels.linear(up(x), up(weight)), ours, "launched twice")


def test_bias_residual_and_out_equal_the_cpu() -> None:
    for M, N, K in ((9, 37, 300), (200, 2080, 520)):
        x, weight = operands(M, N, K)
        bias, residual = torch.randn(N), torch.randn(M, N)
        for b, r in ((bias, None), (None, residual), (bias, residual)):
            expected = kernels.linear(x, weight, b, r)
            there = [None if t is None else up(t) for t in (b, r)]
            assert_bitwise(kernels.linear(up(x), up(weight), there[0], there[1]), expected)
            out = torch.full((M, N), float("nan"), device="cuda")
            assert kernels.linear(up(x), up(weight), there[0], there[1], out) is out
            assert_bitwise(out, expected, "out")
        into = up(residual)
        kernels.linear(up(x), up(weight), None, into, into)
        assert_bitwise(into, kernels.linear(x, weight, None, residual), "the residual written over")


def test_a_row_is_the_same_at_every_m() -> None:
    """Every M from 1 to 150, first and last rows, and the sizes at which tiles and runs change."""
    for N, K in ((70, 64), (48, 600), (4160, 520)):
        x, weight = operands(1100, N, K)
        x, weight = up(x), up(weight)
        alone = torch.cat([kernels.linear(x[i : i + 1], weight) for i in range(150)])
        whole = kernels.linear(x, weight)
        assert_bitwise(whole[:150], alone, f"K = {K}, 1100 rows")
        sizes = [*range(1, 151), 255, 256, 257, 511, 513, 1024]
        differs = [M for M in sizes if not torch.equal(kernels.linear(x[:M], weight), whole[:M])]
        differs += [-M for M in sizes if not torch.equal(kernels.linear(x[-M:], weight), whole[-M:])]
        assert differs == [], f"N = {N}, K = {K}"


def test_subnormals_infinities_and_nan_equal_the_cpu() -> None:
    x, weight = operands(40, 70, 520)
    x[:8] *= 2.0**-70
    x[8:12] *= 2.0**-126
    x[12, 300], x[13, 5], x[14, 511] = float("inf"), float("-inf"), float("nan")
    x[15:18] *= 1e38
    x[18] = 0
    data = unpack(weight).clone()
    data[:20] *= 2.0**-66
    data[5] = -0.0
    weight = pack(data)
    expected = kernels.linear(x, weight)
    small = expected[(expected != 0) & (expected.abs() < 2.0**-126)]
    assert small.numel() > 100, "the case must have subnormal sums"
    assert_bitwise(nan_as_one(kernels.linear(up(x), up(weight))), nan_as_one(expected))


@pytest.mark.parametrize(("M", "K"), [(1, 40), (33, 40), (16, 576), (130, 576), (600, 300)])
def test_linear_silu_mul_equals_the_cpu(M: int, K: int) -> None:
    """Gates of every size: the last rows of x are multiples of one-hot, so that the sums are the weights themselves."""
    x, weight = operands(M, 2 * 96, K)
    if M > 32:
        x[:16] *= 30
        x[-8:] = 0
        x[-8:, 0] = torch.tensor([1.0, -1.0, 104.5, -104.5, 1e38, -1e38, 1e-42, -88.5]).to(torch.bfloat16)
        x[17, 3] = float("nan")
    expected = kernels.linear_silu_mul(x, weight)
    assert_bitwise(kernels.linear_silu_mul(up(x), up(weight)), expected)
    wide = pack((torch.randn(2 * 4160, K, generator=torch.Generator().manual_seed(3)) * 0.1).to(torch.bfloat16))
    assert_bitwise(kernels.linear_silu_mul(up(x), up(wide)), kernels.linear_silu_mul(x, wide))


def test_wrong_operands_are_refused() -> None:
    x, weight = operands(2, 8, 16)
    with pytest.raises(EngineError, match="bfloat16"):
        kernels.linear(up(x.float()), up(weight))
    with pytest.raises(EngineError, match="contiguous"):
        kernels.linear(up(operands(16, 8, 2)[0]).t(), up(weight))
    with pytest.raises(EngineError, match=r"on cuda:0, got .* on cpu"):
        kernels.linear(up(x), weight)
    with pytest.raises(EngineError, match="native-amx"):
        kernels.linear(up(x), up(weight)._replace(native=True))


def test_counter_a_library_product_is_caught() -> None:
    """The sweep has power: a float32 product of the library, whose order follows the shape, fails it."""
    x, weight = operands(1024, 70, 600)
    a, w = up(x).float(), up(unpack(weight)).float().t().contiguous()
    products = [a[:M] @ w for M in (1, 2, 8, 33, 130, 1024)]
    differs = [not torch.equal(many[: len(few)], few) for few, many in pairwise(products)]
    assert any(differs)
    assert not torch.equal(products[-1].cpu(), kernels.linear(x, weight))
