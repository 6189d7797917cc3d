"""Row ops and attention: equal to their twins on every instruction set, a row's bits whatever its neighbours are."""

from collections.abc import Iterator

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import reference
from batchgen.kernels.cpu.native import library
from batchgen.kernels.packing import pack

SETS = library().instruction_sets()
Cache = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True, params=SETS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    library().use(request.param)
    library().set_threads(2)
    yield request.param
    library().use(SETS[-1])
    library().set_threads(1)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def empty_cache(blocks: int, Hk: int, D: int) -> Cache:
    """Full of NaN, so that a read of what was never written shows."""
    nan = float("nan")
    return (
        torch.full((blocks, Hk, D // 2, 32, 2), nan, dtype=torch.bfloat16),
        torch.full((blocks, Hk, 16, D, 2), nan, dtype=torch.bfloat16),
    )


def test_embedding() -> None:
    table = pack(randn(70, 48).to(torch.bfloat16))
    ids = torch.tensor([0, 69, 31, 32, 5, 5], dtype=torch.int32)
    assert_bitwise(kernels.embedding(ids, table), reference.embedding(ids, table))


@pytest.mark.parametrize("H", [16, 64, 576])
def test_rms_norm(H: int) -> None:
    x, weight = randn(70, H) * 3, randn(H, seed=1)
    x[3], x[4] = 0, 1e-20
    norm = kernels.rms_norm(x, weight, 1e-5)
    assert_bitwise(norm, reference.rms_norm(x, weight, 1e-5))
    assert_bitwise(norm[17:18], kernels.rms_norm(x[17:18].clone(), weight, 1e-5))


def test_linear_silu_mul() -> None:
    """Gates of every size: the last rows of x are multiples of one-hot, so that the sums are the weights themselves."""
    x = randn(33, 40)
    x[:16] *= 30
    x[-8:] = 0
    x[-8:, 0] = torch.tensor([1.0, -1.0, 104.5, -104.5, 1e38, -1e38, 1e-42, -88.5])
    x, weight = x.to(torch.bfloat16), pack(randn(2 * 96, 40, seed=1).to(torch.bfloat16))
    assert_bitwise(kernels.linear_silu_mul(x, weight), reference.linear_silu_mul(x, weight))
    for M in (1, 2, 13, 14, 27):
        assert_bitwise(kernels.linear_silu_mul(x[:M], weight), kernels.linear_silu_mul(x, weight)[:M], f"M = {M}")


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize(("Hq", "Hk", "D"), [(4, 2, 32), (9, 3, 64), (2, 1, 128)])
def test_rotary_store(with_norms: bool, Hq: int, Hk: int, D: int) -> None:
    T = 21
    qkv = randn(T, (Hq + 2 * Hk) * D) * 2
    norms = (randn(D, seed=1), randn(D, seed=2)) if with_norms else None
    rotary = (randn(64, D // 2, seed=3), randn(64, D // 2, seed=4))
    place = (
        torch.arange(40, 40 + T, dtype=torch.int32),
        torch.randperm(96, generator=torch.Generator().manual_seed(5))[:T],
    )
    ours, twin = empty_cache(3, Hk, D), empty_cache(3, Hk, D)
    q = kernels.rotary_store(qkv, norms, 1e-6, rotary, place, ours)
    assert_bitwise(q, reference.rotary_store(qkv, norms, 1e-6, rotary, place, twin))
    assert_bitwise(ours[0], twin[0], "keys")
    assert_bitwise(ours[1], twin[1], "values")


def paged(lengths: list[int], Hk: int, D: int) -> tuple[Cache, torch.Tensor]:
    """A cache that holds sequences of these lengths in scattered blocks, NaN elsewhere; and the block tables."""
    blocks = [-(-n // 32) for n in lengths]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(7)).tolist()
    cache = empty_cache(sum(blocks), Hk, D)
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for s, n in enumerate(lengths):
        mine = [order.pop() for _ in range(blocks[s])]
        tables[s, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        for p in range(n):
            block, at = mine[p // 32], p % 32
            cache[0][block, :, :, at, :] = randn(Hk, D // 2, 2, seed=1000 * s + p).to(torch.bfloat16)
            cache[1][block, :, at // 2, :, at % 2] = randn(Hk, D, seed=5000 * s + p).to(torch.bfloat16)
    return cache, tables


@pytest.mark.parametrize(("Hq", "Hk", "D"), [(4, 2, 32), (9, 3, 64), (2, 2, 96), (2, 1, 128), (2, 1, 256), (16, 1, 32)])
def test_attention_equals_the_twin(Hq: int, Hk: int, D: int) -> None:
    """Decodes and prefills of all lengths around the edges of blocks, side by side."""
    lengths, counts = [1, 31, 32, 33, 65, 40], [1, 1, 3, 33, 2, 40]
    cache, tables = paged(lengths, Hk, D)
    positions = torch.cat([torch.arange(n - c, n, dtype=torch.int32) for n, c in zip(lengths, counts, strict=True)])
    start = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    q = (randn(len(positions), Hq, D) * 2).to(torch.bfloat16)
    out = kernels.attention(q, cache, tables, start, positions)
    assert not out.isnan().any(), "read what was never written"
    assert_bitwise(out, reference.attention(q, cache, tables, start, positions))


def test_a_token_attends_alike_in_a_prefill_and_alone() -> None:
    Hq, Hk, D, n = 6, 2, 32, 100
    cache, tables = paged([n], Hk, D)
    q = randn(n, Hq, D).to(torch.bfloat16)
    positions = torch.arange(n, dtype=torch.int32)
    whole = kernels.attention(q, cache, tables, torch.tensor([0, n], dtype=torch.int32), positions)
    for t in range(n):
        one = kernels.attention(
            q[t : t + 1], cache, tables, torch.tensor([0, 1], dtype=torch.int32), positions[t : t + 1]
        )
        assert_bitwise(one, whole[t : t + 1], f"position {t}")


def test_heads_that_do_not_fit_are_refused() -> None:
    for D in (48, 512):
        cache = empty_cache(1, 1, D)
        one = torch.tensor([0], dtype=torch.int32)
        with pytest.raises(EngineError, match="head_dim"):
            kernels.attention(torch.zeros(1, 1, D, dtype=torch.bfloat16), cache, one[None], torch.tensor([0, 1]), one)


def test_a_nan_is_not_hidden() -> None:
    """A bad value must reach the logits, where it ends its row; it must not become a plausible number."""
    x = randn(2, 32)
    x[0, 5] = float("nan")
    both = kernels.linear_silu_mul(x.to(torch.bfloat16), pack(randn(64, 32).to(torch.bfloat16)))
    assert both[0].isnan().all()
    assert not both[1].isnan().any()
    assert kernels.rms_norm(x, torch.ones(32), 1e-5)[0].isnan().all()
    assert not kernels.rms_norm(x, torch.ones(32), 1e-5)[1].isnan().any()
