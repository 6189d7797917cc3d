"""Every op over 1 to 300 rows: a row's bits are those that it has alone, whatever M, in chunks, and at each launch.

Guards against a norm that takes another block at 256 rows (vLLM #48271), a matrix product picked by its whole shape
(TransformerEngine #2986: rows that differ at M = 2, 17, 128, 257), cuts of the step (DeepSeek-V4's four dispatches by
token count, SGLang #36174), and a kernel that gives two answers to one question (triton #9871).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.bitwise import assert_bitwise
from support.sampling import random_rows, take

from batchgen import kernels
from batchgen.kernels.cpu.native import library
from batchgen.kernels.packing import pack

ROWS = 300
H, HQ, HK, D = 128, 4, 2, 32
WIDE = 1024  # a norm is rounded to bfloat16, so only many elements show a change of its float32 sum
BLOCKS = 3  # of each sequence's table

Rows = slice


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Case:
    """An op as a function of which of the 300 rows it is given."""

    name: str
    run: Callable[[Rows], torch.Tensor]


def linears(native: bool) -> Iterator[Case]:
    x, residual, bias = randn(ROWS, 320).to(torch.bfloat16), randn(ROWS, 70, seed=1), randn(70, seed=2)
    weight = pack(randn(70, 320, seed=3).to(torch.bfloat16), native=native)
    gated = pack(randn(128, 320, seed=4).to(torch.bfloat16), native=native)
    yield Case("linear", lambda rows: kernels.linear(x[rows], weight))
    yield Case("linear with bias", lambda rows: kernels.linear(x[rows], weight, bias))
    yield Case("linear with residual", lambda rows: kernels.linear(x[rows], weight, None, residual[rows]))
    yield Case("linear_silu_mul", lambda rows: kernels.linear_silu_mul(x[rows], gated))


def row_ops() -> Iterator[Case]:
    x, weight = randn(ROWS, WIDE) * 3, randn(WIDE, seed=1)
    table, tokens = pack(randn(ROWS, H, seed=2).to(torch.bfloat16)), torch.arange(ROWS, dtype=torch.int32).flip(0)
    yield Case("rms_norm", lambda rows: kernels.rms_norm(x[rows], weight, 1e-5))
    yield Case("embedding", lambda rows: kernels.embedding(tokens[rows].contiguous(), table))
    for norms in (None, (randn(D, seed=5), randn(D, seed=6))):
        yield Case(f"rotary_store, norms {norms is not None}", rotary(norms))


def rotary(norms: tuple[torch.Tensor, torch.Tensor] | None) -> Callable[[Rows], torch.Tensor]:
    """Queries, keys and values of each row side by side."""
    qkv, tables = randn(ROWS, (HQ + 2 * HK) * D, seed=3), (randn(ROWS, D // 2, seed=7), randn(ROWS, D // 2, seed=8))
    positions, slots = torch.arange(ROWS, dtype=torch.int32), torch.arange(ROWS).flip(0)

    def run(rows: Rows) -> torch.Tensor:
        cache = empty_cache(10)
        place = (positions[rows].contiguous(), slots[rows].contiguous())
        q = kernels.rotary_store(qkv[rows], norms, 1e-5, tables, place, cache)
        blocks, at = place[1] // 32, place[1] % 32
        keys = cache[0][blocks, :, :, at].flatten(1)
        values = cache[1][blocks, :, at // 2, :, at % 2].flatten(1)
        return torch.cat([q.flatten(1), keys, values], 1)

    return run


def empty_cache(blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    bf16 = torch.bfloat16
    return torch.zeros(blocks, HK, D // 2, 32, 2, dtype=bf16), torch.zeros(blocks, HK, 16, D, 2, dtype=bf16)


def decodes() -> Case:
    """Attention of 300 sequences, one token each, with 1 to 96 positions before it."""
    cache = empty_cache(50)
    for part, seed in zip(cache, (1, 2), strict=True):
        part.copy_(randn(*part.shape, seed=seed))
    q = randn(ROWS, HQ, D, seed=3).to(torch.bfloat16)
    tables = (torch.arange(ROWS * BLOCKS, dtype=torch.int32) * 7 % 50).view(ROWS, BLOCKS)
    positions = (torch.arange(ROWS, dtype=torch.int32) * 13) % (32 * BLOCKS)

    def run(rows: Rows) -> torch.Tensor:
        count = len(positions[rows])
        start = torch.arange(count + 1, dtype=torch.int32)
        return kernels.attention(q[rows], cache, tables[rows], start, positions[rows])

    return Case("attention, decodes", run)


def prefill() -> Case:
    """Attention of one sequence of 300 tokens, any stretch of it as one chunk."""
    cache = empty_cache(10)
    for part, seed in zip(cache, (4, 5), strict=True):
        part.copy_(randn(*part.shape, seed=seed))
    q, table = randn(ROWS, HQ, D, seed=6).to(torch.bfloat16), torch.randperm(10).to(torch.int32)[None]
    positions = torch.arange(ROWS, dtype=torch.int32)

    def run(rows: Rows) -> torch.Tensor:
        start = torch.tensor([0, len(positions[rows])], dtype=torch.int32)
        return kernels.attention(q[rows], cache, table, start, positions[rows])

    return Case("attention, a prefill", run)


def sampler(processed: bool) -> Case:
    rng = np.random.default_rng(5)
    logits, rows_of = torch.from_numpy(rng.standard_normal((ROWS, 90), np.float32) * 4), random_rows(rng, ROWS, 90)

    def run(rows: Rows) -> torch.Tensor:
        order = list(range(*rows.indices(ROWS)))
        draws = kernels.sample(logits[rows], take(rows_of, order), processed_logprobs=processed)
        columns = [draws.token[:, None], draws.logprob[:, None], draws.top_ids, draws.top_values]
        bits = [torch.from_numpy(column.copy()).view(torch.int32) for column in columns]
        return torch.cat([*bits, torch.from_numpy(draws.finite.astype(np.int32))[:, None]], 1)

    return Case(f"sample, processed {processed}", run)


CASES = [*linears(native=False), *row_ops(), decodes(), prefill(), sampler(False), sampler(True)]
if library().has_amx():
    CASES += [Case(f"{case.name}, native", case.run) for case in linears(native=True)]
every_op = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    library().set_threads(2)
    yield
    library().set_threads(1)


def sweep(case: Case) -> None:
    """Every M from 1 to 300: the first M rows and the last M, against each row by itself."""
    alone = torch.cat([case.run(slice(row, row + 1)) for row in range(ROWS)])
    for M in range(1, ROWS + 1):
        assert_bitwise(case.run(slice(0, M)), alone[:M], f"{case.name}, the first {M} rows")
        assert_bitwise(case.run(slice(ROWS - M, ROWS)), alone[ROWS - M :], f"{case.name}, the last {M} rows")


@every_op
def test_every_number_of_rows(case: Case) -> None:
    sweep(case)


@every_op
@pytest.mark.parametrize("size", [1, 31, 32, 33, 128, 254, 255, 256, 257])
def test_whole_and_in_chunks(case: Case, size: int) -> None:
    chunks = torch.cat([case.run(slice(at, min(at + size, ROWS))) for at in range(0, ROWS, size)])
    assert_bitwise(chunks, case.run(slice(0, ROWS)), f"{case.name} in chunks of {size}")


@every_op
def test_every_launch(case: Case) -> None:
    """The same question on the same threads, over and over, and on more threads than there are cores."""
    first = case.run(slice(0, ROWS))
    for threads in (1, 2, 3, 8):
        library().set_threads(threads)
        for launch in range(8):
            assert_bitwise(case.run(slice(0, ROWS)), first, f"{case.name}, {threads} threads, launch {launch}")


def test_the_rows_differ() -> None:
    """Equality of rows says something only where they are not all one."""
    for case in CASES:
        rows = case.run(slice(0, ROWS)).contiguous()
        assert len({row.view(torch.uint8).numpy().tobytes() for row in rows}) > ROWS // 2, case.name


def block_by_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A norm whose sum goes by blocks of 64 below 256 rows and of 16 from there on: vLLM #48271."""
    width = 64 if len(x) < 256 else 16
    squares = (x * x).view(len(x), -1, width).sum(2).cumsum(1)[:, -1]
    return (x * torch.rsqrt(squares / x.shape[1] + eps)[:, None] * weight).to(torch.bfloat16)


def test_counter_a_block_chosen_by_the_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name == "rms_norm")
    monkeypatch.setattr(kernels, "rms_norm", block_by_rows)
    with pytest.raises(AssertionError, match="256 rows: "):
        sweep(case)
    with pytest.raises(AssertionError, match="in chunks of 255"):
        test_whole_and_in_chunks(case, 255)


def test_counter_a_second_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a race would do: one element, once in many launches."""
    exact, launches = kernels.rms_norm, iter(range(1000))

    def racing(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = exact(x, weight, eps)
        if next(launches) % 16 == 15:
            out.view(torch.int16)[-1, -1] ^= 1
        return out

    monkeypatch.setattr(kernels, "rms_norm", racing)
    with pytest.raises(AssertionError, match="launch"):
        test_every_launch(next(case for case in CASES if case.name == "rms_norm"))
