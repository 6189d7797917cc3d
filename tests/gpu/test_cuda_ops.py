"""portable/1 on a GPU: row ops and attention have the bits of the CPU, and the profile its digest."""

import pytest
import torch
from support.bitwise import assert_bitwise
from support.on_gpu import GPU, nan_as_one, up

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import golden
from batchgen.kernels.cache_rows import cache_rows
from batchgen.kernels.packing import pack

pytestmark = GPU
Cache = tuple[torch.Tensor, torch.Tensor]
HEADS = [(4, 2, 32), (9, 3, 64), (2, 2, 96), (10, 2, 128), (2, 1, 256), (16, 1, 32), (7, 7, 64), (14, 2, 64)]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randperm(n: int, seed: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def test_the_profile_has_its_digest() -> None:
    assert golden.kernel_set_digest(device="cuda") == golden.GOLDEN["portable/1"]


@pytest.mark.parametrize(("V", "H"), [(70, 48), (1000, 576), (33, 2)])
def test_embedding(V: int, H: int) -> None:
    table = pack(randn(V, H).to(torch.bfloat16))
    ids = torch.tensor([0, V - 1, 31, 32, 5, 5], dtype=torch.int32)
    assert_bitwise(kernels.embedding(up(ids), up(table)), kernels.embedding(ids, table))


@pytest.mark.parametrize("H", [16, 48, 64, 576, 2048, 4080, 4096, 4112, 12288])
def test_rms_norm(H: int) -> None:
    x, weight = randn(70, H) * 3, randn(H, seed=1)
    x[3], x[4], x[5], x[6] = 0, 1e-20, 1e-42, 1e30
    x[7, 3], x[8, H - 1], x[9, 5] = float("nan"), float("inf"), -3e38
    expected = kernels.rms_norm(x, weight, 1e-5)
    norm = kernels.rms_norm(up(x), up(weight), 1e-5)
    assert_bitwise(norm, expected)
    assert_bitwise(kernels.rms_norm(up(x)[17:18], up(weight), 1e-5), norm[17:18], "alone")
    assert_bitwise(kernels.rms_norm(up(x), up(weight), 1e-5), norm, "launched twice")


def empty_cache(blocks: int, Hk: int, D: int) -> Cache:
    """Full of NaN: what was never written must never be read."""
    return (
        torch.full((blocks, Hk, D // 2, 32, 2), float("nan"), dtype=torch.bfloat16),
        torch.full((blocks, Hk, 16, D, 2), float("nan"), dtype=torch.bfloat16),
    )


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize(("Hq", "Hk", "D"), HEADS)
def test_rotary_store(with_norms: bool, Hq: int, Hk: int, D: int) -> None:
    T = 21
    qkv = randn(T, (Hq + 2 * Hk) * D) * 2
    qkv[3] *= 1e-40
    qkv[4] *= 1e25
    norms = (randn(D, seed=1), randn(D, seed=2)) if with_norms else None
    rotary = (randn(64, D // 2, seed=3), randn(64, D // 2, seed=4))
    place = (torch.arange(40, 40 + T, dtype=torch.int32), randperm(96, 5)[:T])
    cpu = empty_cache(3, Hk, D)
    gpu = up(cpu)
    expected = kernels.rotary_store(qkv, norms, 1e-6, rotary, place, cpu)
    q = kernels.rotary_store(up(qkv), None if norms is None else up(norms), 1e-6, up(rotary), up(place), gpu)
    assert_bitwise(q, expected)
    for ours, theirs in zip(gpu, cpu, strict=True):
        assert_bitwise(ours, theirs, "cache")
    for ours, theirs in zip(cache_rows(gpu, up(place[1])), cache_rows(cpu, place[1]), strict=True):
        assert_bitwise(ours, theirs, "rows of the cache")


def filled(lengths: list[int], Hk: int, D: int) -> tuple[Cache, torch.Tensor]:
    """A cache that holds sequences of these lengths in scattered blocks, NaN elsewhere; and the block tables."""
    blocks = [-(-n // 32) for n in lengths]
    order = randperm(sum(blocks), 7).tolist()
    cache = empty_cache(sum(blocks), Hk, D)
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for s, n in enumerate(lengths):
        mine = torch.tensor([order.pop() for _ in range(blocks[s])])
        tables[s, : len(mine)] = mine.to(torch.int32)
        block, at = mine[torch.arange(n) // 32], torch.arange(n) % 32
        cache[0][block, :, :, at, :] = randn(n, Hk, D // 2, 2, seed=s).to(torch.bfloat16)
        cache[1][block, :, at // 2, :, at % 2] = randn(n, Hk, D, seed=100 + s).to(torch.bfloat16)
    return cache, tables


def steps(lengths: list[int], counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """query_start and positions of the last `counts` tokens of each sequence."""
    positions = torch.cat([torch.arange(n - c, n, dtype=torch.int32) for n, c in zip(lengths, counts, strict=True)])
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32), positions


@pytest.mark.parametrize(("Hq", "Hk", "D"), HEADS)
def test_attention(Hq: int, Hk: int, D: int) -> None:
    """Decodes and prefills of all lengths around the edges of blocks, side by side; also large and tiny scores."""
    lengths, counts = [1, 31, 32, 33, 65, 40, 300, 700], [1, 1, 3, 33, 2, 40, 5, 1]
    cache, tables = filled(lengths, Hk, D)
    start, positions = steps(lengths, counts)
    q = randn(len(positions), Hq, D) * 2
    q[5:8] *= 40
    q[9] *= 1e-38
    q[11] *= 1e20
    half = q.to(torch.bfloat16)
    expected = kernels.attention(half, cache, tables, start, positions)
    assert not expected.isnan().any()
    there = up(cache), up(tables), up(start), up(positions)
    out = kernels.attention(up(half), *there)
    assert_bitwise(out, expected)
    assert_bitwise(kernels.attention(up(half), *there), out, "launched twice")


def test_attention_of_what_is_not_finite() -> None:
    cache, tables = filled([70, 70], 1, 64)
    cache[0][int(tables[0, 1]), 0, 3, 5, 1] = float("inf")
    start, positions = steps([70, 70], [70, 70])
    q = randn(140, 2, 64).to(torch.bfloat16)
    q[80, 1, 5] = float("nan")
    expected = kernels.attention(q, cache, tables, start, positions)
    assert expected.isnan().any(dim=1).sum() > 5
    out = kernels.attention(up(q), up(cache), up(tables), up(start), up(positions))
    assert_bitwise(nan_as_one(out), nan_as_one(expected))


def test_a_token_attends_alike_in_a_prefill_and_alone() -> None:
    n = 100
    cache, tables = filled([n], 2, 32)
    q, (start, positions) = up(randn(n, 6, 32).to(torch.bfloat16)), steps([n], [n])
    there = up(cache), up(tables)
    whole = kernels.attention(q, *there, up(start), up(positions))
    one = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    for t in range(n):
        alone = kernels.attention(q[t : t + 1].clone(), *there, one, up(positions)[t : t + 1])
        assert_bitwise(alone, whole[t : t + 1], f"position {t}")


def test_where_the_blocks_lie_is_not_seen() -> None:
    lengths = [90, 64, 17]
    cache, tables = filled(lengths, 2, 64)
    start, positions = steps(lengths, [90, 1, 17])
    q = up(randn(len(positions), 4, 64).to(torch.bfloat16))
    expected = kernels.attention(q, up(cache), up(tables), up(start), up(positions))
    moved = randperm(len(cache[0]), 3)
    elsewhere = cache[0].clone(), cache[1].clone()
    elsewhere[0][moved], elsewhere[1][moved] = cache
    there = up(moved[tables.long()].to(torch.int32))
    assert_bitwise(kernels.attention(q, up(elsewhere), there, up(start), up(positions)), expected)


def test_heads_that_do_not_fit_are_refused() -> None:
    for D in (48, 512):
        cache = up(empty_cache(1, 1, D))
        one = torch.zeros(1, dtype=torch.int32, device="cuda")
        with pytest.raises(EngineError, match="head_dim"):
            kernels.attention(torch.zeros(1, 1, D, dtype=torch.bfloat16, device="cuda"), cache, one[None], one, one)


def test_a_graph_replays_the_same_bits() -> None:
    """No op of a layer waits or does anything else that a capture forbids."""
    x, weight = up(randn(5, 576)), up(randn(576, seed=1))
    panels = up(pack(randn(192, 576, seed=2).to(torch.bfloat16)))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def layer() -> torch.Tensor:
        return kernels.linear_silu_mul(kernels.rms_norm(x, weight, 1e-5), panels)

    with torch.cuda.stream(stream):
        eager = layer()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = layer()
        x.copy_(x.flip(0))
        graph.replay()
        torch.cuda.synchronize()
    assert_bitwise(out, eager.flip(0))
