"""The linears of profile native-amx/1: a row is the same at every M and on any number of threads."""

from collections.abc import Iterator

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import golden
from batchgen.kernels.cpu import native
from batchgen.kernels.packing import PackedWeight, pack

needs_amx = pytest.mark.skipif(not native.library().has_amx(), reason="this processor has no AMX")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    native.set_threads(1)


def operands(M: int, N: int, K: int) -> tuple[torch.Tensor, PackedWeight]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(M, K, generator=random).to(torch.bfloat16)
    return x, pack(torch.randn(N, K, generator=random).to(torch.bfloat16), native=True)


@needs_amx
@pytest.mark.parametrize(("N", "K"), [(70, 64), (33, 608)])
def test_a_row_is_the_same_at_every_m(N: int, K: int) -> None:
    x, weight = operands(130, N, K)
    alone = torch.cat([kernels.linear(x[i : i + 1], weight) for i in range(130)])
    for M in range(1, 131):
        assert_bitwise(kernels.linear(x[:M], weight), alone[:M], f"M = {M}, first rows")
        assert_bitwise(kernels.linear(x[130 - M :], weight), alone[130 - M :], f"M = {M}, last rows")


@needs_amx
def test_gated_rows_are_the_same_at_every_m() -> None:
    x, weight = operands(70, 128, 96)
    alone = torch.cat([kernels.linear_silu_mul(x[i : i + 1], weight) for i in range(70)])
    for M in range(1, 71):
        assert_bitwise(kernels.linear_silu_mul(x[:M], weight), alone[:M], f"M = {M}")


@needs_amx
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads_cannot_be_seen(threads: int) -> None:
    x, weight = operands(50, 333, 512)
    alone = kernels.linear(x, weight)
    native.set_threads(threads)
    for _ in range(20):
        assert_bitwise(kernels.linear(x, weight), alone)


@needs_amx
def test_bias_residual_and_edges() -> None:
    """Near the float32 sums of portable/1, to which bias and residual are added in the same order."""
    x, weight = operands(37, 70, 320)
    bias, residual = torch.randn(70), torch.randn(37, 70)
    exact = kernels.linear(x, weight._replace(native=False), bias, residual)
    close = kernels.linear(x, weight, bias, residual)
    assert torch.allclose(close, exact, rtol=1e-5, atol=1e-4)
    assert not torch.equal(close, exact), "another order of summation: another profile"


@needs_amx
def test_the_profile_is_the_recorded_one() -> None:
    assert golden.kernel_set_digest(native=True) == golden.GOLDEN["native-amx/1"]


def test_a_machine_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def has_amx() -> bool:
            return False

    monkeypatch.setattr(native, "_cpu", Without)
    with pytest.raises(EngineError, match="needs a processor with AMX"):
        native.require_native()
