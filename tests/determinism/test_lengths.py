"""Long beside short, and lengths around every edge of a block, to the limit of the context.

Guards against splits taken from the longest of the batch or from its size (tokenspeed #904: splits = 256 // batch), a
table's padding that is read, and the last position of a block or of the context.
"""

import itertools

import pytest
import torch
from support.model_cases import MAX_MODEL_LEN, ask, assert_same, generate, ids, with_limits

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.cpu.ops import attention as exact_attention
from batchgen.records import Request, SamplingParams

EDGES = sorted({n + d for n in range(0, MAX_MODEL_LEN, 32) for d in (-2, -1, 0, 1, 2) if 0 < n + d < MAX_MODEL_LEN})
PARAMS = SamplingParams(temperature=0.9, max_tokens=1, ignore_eos=True, logprobs=3)


def of(prompt: int, output: int) -> Request:
    params = SamplingParams(temperature=0.9, top_p=0.9, max_tokens=output, ignore_eos=True, logprobs=3)
    return ask(f"{prompt} + {output}", ids(prompt, prompt), params)


RAGGED = [of(n, min(5, MAX_MODEL_LEN - n)) for n in [*EDGES, MAX_MODEL_LEN - 1]]
TO_THE_LIMIT = [of(n, MAX_MODEL_LEN - n) for n in (1, 33, 95, 128, 150, 157, 158)]


@pytest.fixture(scope="module")
def single(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1), [*RAGGED, *TO_THE_LIMIT])


@pytest.mark.parametrize("max_num_seqs", [2, 3, 8, 64])
@pytest.mark.parametrize("budget", [32, 33, 64, 1000])
def test_ragged_lengths(engine: Engine, single: dict[str, str], max_num_seqs: int, budget: int) -> None:
    ragged = with_limits(engine, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
    assert_same(generate(ragged, RAGGED), single, "ascending")
    assert_same(generate(ragged, RAGGED[::2] + RAGGED[1::2][::-1]), single, "up and down")


def test_every_pair_of_edges(engine: Engine, single: dict[str, str]) -> None:
    """The longest beside each of the others, and each beside the next."""
    pairs = [(RAGGED[-1], request) for request in RAGGED[:-1]] + list(itertools.pairwise(RAGGED))
    for pair in pairs:
        assert_same(generate(with_limits(engine), pair), single, " beside ".join(r.row_key for r in pair))


def test_to_the_limit_of_the_context(engine: Engine, single: dict[str, str]) -> None:
    """Sequences that fill max_model_len to the last position, one ending after another beside a short one."""
    for batch in (TO_THE_LIMIT, TO_THE_LIMIT[::-1], [*TO_THE_LIMIT, *RAGGED[:9]]):
        assert_same(generate(with_limits(engine), batch), single, "to the limit")
        assert_same(generate(with_limits(engine, num_blocks=11), batch), single, "to the limit, in a small pool")
    assert all(request.params.max_tokens == MAX_MODEL_LEN - len(request.prompt_token_ids) for request in TO_THE_LIMIT)


def test_a_long_prompt_that_shares_its_steps(engine: Engine, single: dict[str, str]) -> None:
    """Its chunks are what decodes leave of the budget, so they begin anywhere: pegainfer #688."""
    long = of(MAX_MODEL_LEN - 1, 1)
    for budget in range(3, 40):
        shared = with_limits(engine, max_num_seqs=4, max_num_batched_tokens=budget)
        assert_same(generate(shared, [*TO_THE_LIMIT[-3:], long]), single, f"budget {budget}")


def test_counter_a_split_by_the_longest_is_caught(
    engine: Engine, single: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention that cuts the keys of all sequences in as many parts as the longest needs: one more rounding."""

    def split(
        q: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        tables: torch.Tensor,
        start: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        out = exact_attention(q, cache, tables, start, positions)
        spare = tables.shape[1] - (positions[start[1:].long() - 1] // 32 + 1)  # blocks that a sequence does not have
        for s in torch.nonzero(spare).flatten().tolist():
            out[start[s] : start[s + 1]].view(torch.int16)[:, 0] ^= 1
        return out

    monkeypatch.setattr(kernels, "attention", split)
    pair = [RAGGED[-1], RAGGED[0]]
    for request in pair:
        assert_same(generate(with_limits(engine), [request]), single, "alone")
    with pytest.raises(AssertionError, match="differs"):
        assert_same(generate(with_limits(engine), pair), single, "long beside short")
