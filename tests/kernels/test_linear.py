"""The linear kernel: equal to its twin, and row by row the same at every M, on every instruction set and thread count.

Guards against tiles, splits or edges that change a sum: TransformerEngine #2986 found rows that differ from M = 1 at
M = 2, 17, 128, 257; nothing but a sweep over every M finds the next such number.
"""

from collections.abc import Iterator

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import PackedWeight, reference
from batchgen.kernels.cpu.native import library
from batchgen.kernels.packing import pack, unpack

SETS = library().instruction_sets()


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Whatever a test chose, the next one starts from the widest set and one thread."""
    yield
    library().use(SETS[-1])
    library().set_threads(1)


def operands(M: int, N: int, K: int, seed: int = 0) -> tuple[torch.Tensor, PackedWeight]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(M, K, generator=random).to(torch.bfloat16)
    return x, pack(torch.randn(N, K, generator=random).to(torch.bfloat16))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize(
    ("M", "N", "K"), [(1, 1, 2), (3, 31, 16), (2, 32, 254), (15, 33, 256), (5, 64, 258), (29, 47, 512), (7, 96, 770)]
)
def test_equals_the_twin(isa: str, M: int, N: int, K: int) -> None:
    library().use(isa)
    x, weight = operands(M, N, K)
    assert_bitwise(kernels.linear(x, weight), reference.linear(x, weight))


@pytest.mark.parametrize("isa", SETS)
def test_bias_and_residual_equal_the_twin(isa: str) -> None:
    library().use(isa)
    x, weight = operands(9, 37, 300)
    bias, residual = torch.randn(37), torch.randn(9, 37)
    for options in ({"bias": bias}, {"residual": residual}, {"bias": bias, "residual": residual}):
        assert_bitwise(kernels.linear(x, weight, **options), reference.linear(x, weight, **options))


@pytest.mark.parametrize("isa", SETS[1:])
def test_more_than_one_block_of_rows(isa: str) -> None:
    """The kernel cuts x into blocks of at most 144 rows; a step of 256 tokens has two."""
    library().use(isa)
    x, weight = operands(433, 40, 320)
    alone = torch.cat([kernels.linear(x[i : i + 1], weight) for i in range(433)])
    for M in (143, 144, 145, 156, 157, 257, 288, 289, 433):
        assert_bitwise(kernels.linear(x[:M], weight), alone[:M], f"M = {M}")


@pytest.mark.parametrize("isa", SETS[1:])
def test_a_row_is_the_same_at_every_m(isa: str) -> None:
    """Every M from 1 to 130, every row position, against the row alone; K of one block, of several, and ragged."""
    for N, K in ((70, 64), (48, 600)):
        x, weight = operands(130, N, K)
        library().use("scalar")
        alone = torch.cat([kernels.linear(x[i : i + 1], weight) for i in range(130)])
        library().use(isa)
        for M in range(1, 131):
            assert_bitwise(kernels.linear(x[:M], weight), alone[:M], f"M = {M}, K = {K}, first rows")
            assert_bitwise(kernels.linear(x[130 - M :], weight), alone[130 - M :], f"M = {M}, K = {K}, last rows")


def test_the_scalar_path_is_the_same_at_every_m() -> None:
    library().use("scalar")
    x, weight = operands(130, 33, 64)
    whole = kernels.linear(x, weight)
    for M in range(1, 131):
        assert_bitwise(kernels.linear(x[:M], weight), whole[:M], f"M = {M}")


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads_cannot_be_seen(threads: int) -> None:
    x, weight = operands(40, 333, 520)
    alone = kernels.linear(x, weight)
    library().set_threads(threads)
    for _ in range(20):
        assert_bitwise(kernels.linear(x, weight), alone, f"{threads} threads")


@pytest.mark.parametrize("isa", SETS)
def test_subnormals_are_kept_whatever_the_host_program_set(isa: str) -> None:
    library().use(isa)
    tiny = torch.full((1, 2), 2.0**-70, dtype=torch.bfloat16)
    weight = pack(torch.full((1, 2), 2.0**-70, dtype=torch.bfloat16))
    assert torch.set_flush_denormal(True)
    try:
        y = kernels.linear(tiny, weight)
    finally:
        torch.set_flush_denormal(False)
    assert y.view(torch.int32).item() == 2**10  # 2 * 2^-140 in units of 2^-149


def test_wrong_operands_are_refused() -> None:
    x, weight = operands(2, 8, 16)
    with pytest.raises(EngineError, match="bfloat16"):
        kernels.linear(x.float(), weight)
    with pytest.raises(EngineError, match="contiguous"):
        kernels.linear(operands(16, 8, 2)[0].t(), weight)
    with pytest.raises(EngineError, match="no kernels for meta"):
        kernels.linear(x.to("meta"), weight)


def test_counter_a_library_product_is_caught() -> None:
    """The sweep has power: torch's float32 product, whose order of summation follows the shape, fails it."""
    x, weight = operands(130, 70, 600)
    w = unpack(weight).float().t().contiguous()
    alone = torch.cat([x[i : i + 1].float() @ w for i in range(130)])
    differs = [M for M in range(1, 131) if not torch.equal(x[:M].float() @ w, alone[:M])]
    assert differs
    with pytest.raises(AssertionError, match="elements differ"):
        assert_bitwise(x[: differs[0]].float() @ w, alone[: differs[0]])
