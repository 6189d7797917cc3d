"""A token's logprob is the same bits when it is drawn and when it is scored later as part of a prompt.

Guards against a decode path that is not the prefill's (vLLM #48271, #42259: logprobs of prefill and decode differ;
SGLang's p_vs_d), and against noise that hangs on where the prompt ended. At every split between prompt and output.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.bitwise import assert_bitwise
from support.forward import position_logits
from support.model_cases import PARAMS, ask, generate, ids, with_limits

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.cpu.ops import attention as exact_attention
from batchgen.models.decoder import Decoder
from batchgen.records import Completion, Request, SamplingParams

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=40, ignore_eos=True, logprobs=20)
PROMPT = ids(27, 5)  # with the output it crosses two edges of blocks


def completed(engine: Engine, *wanted: Request, **limits: int) -> dict[str, Completion]:
    return {completion.row_key: completion for completion in with_limits(engine, **limits).generate(wanted)}


@pytest.fixture(scope="module")
def drawn(engine: Engine) -> Completion:
    """An answer of 40 tokens with their logprobs and the twenty best at each place."""
    return completed(engine, ask("drawn", PROMPT, SAMPLED))["drawn"]


def test_logits_at_every_split(decoder: Decoder, drawn: Completion) -> None:
    """The model alone: s tokens in one piece and the rest one by one, against all in one piece."""
    tokens = [*PROMPT, *drawn.token_ids]
    whole = position_logits(decoder, tokens, [])
    for split in range(1, len(tokens)):
        cuts = list(range(split, len(tokens)))
        assert_bitwise(position_logits(decoder, tokens, cuts), whole, f"{split} tokens at once, then one by one")


def scoring(drawn: Completion, split: int, batch: str) -> Request:
    """A request whose first token is forced to be the answer's, after a prompt that holds the answer up to there."""
    token = drawn.token_ids[split]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True, logit_bias={token: 100.0})
    return ask(f"{batch}-{split}", [*PROMPT, *drawn.token_ids[:split]], params)


def assert_scores(scored: Completion, drawn: Completion, split: int) -> None:
    """The raw logprob of the token and of the twenty best, bit for bit."""
    assert drawn.logprobs
    assert drawn.top_logprobs_values
    assert drawn.top_logprobs_ids
    assert scored.logprobs
    assert scored.top_logprobs_values
    assert scored.top_logprobs_ids
    assert scored.token_ids == drawn.token_ids[split : split + 1]
    assert scored.logprobs[0].hex() == drawn.logprobs[split].hex(), f"token {split}"
    assert scored.top_logprobs_ids[0] == drawn.top_logprobs_ids[split], f"token {split}"
    ours, theirs = scored.top_logprobs_values[0], drawn.top_logprobs_values[split]
    assert [value.hex() for value in ours] == [value.hex() for value in theirs], f"token {split}"


@pytest.mark.parametrize("limits", [{}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 13}])
def test_scored_as_it_was_drawn(engine: Engine, drawn: Completion, limits: dict[str, int]) -> None:
    """Every token of the answer by a prompt that ends before it: all in one batch, alone, and in small chunks."""
    wanted = [scoring(drawn, split, "scored") for split in range(len(drawn.token_ids))]
    scored = completed(engine, *wanted, **limits)
    for split, request in enumerate(wanted):
        assert_scores(scored[request.row_key], drawn, split)


def goes_on(engine: Engine, params: SamplingParams, split: int) -> tuple[list[Any], list[Any]]:
    """The rest of an answer, and the answer of the same sample when its prompt holds all before the split."""
    whole = ask("sample", PROMPT, params)
    answer = completed(engine, whole)["sample"]
    rest = replace(params, max_tokens=params.max_tokens - split)
    again = replace(whole, prompt_token_ids=(*PROMPT, *answer.token_ids[:split]), params=rest)
    continued = completed(engine, again)["sample"]

    def bits(tokens: Any, logprobs: Any) -> list[Any]:
        return [*tokens, *(value.hex() for value in logprobs)]

    assert answer.logprobs is not None
    assert continued.logprobs is not None
    return bits(answer.token_ids[split:], answer.logprobs[split:]), bits(continued.token_ids, continued.logprobs)


@pytest.mark.parametrize("kind", range(5))
def test_an_answer_goes_on_from_any_of_its_tokens(engine: Engine, kind: int) -> None:
    """The noise is keyed by the absolute position, so where the prompt ended cannot be seen."""
    params = replace(PARAMS[kind], max_tokens=24, min_tokens=0, stop=(), ignore_eos=True)
    for split in range(1, 24):
        rest, continued = goes_on(engine, params, split)
        assert rest == continued, f"from token {split} on"


def test_counter_a_decode_path_of_its_own_is_caught(
    engine: Engine, decoder: Decoder, drawn: Completion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit in steps of single tokens, as a decode kernel with another order of summation would give."""

    def decoding(
        q: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        tables: torch.Tensor,
        start: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        out = exact_attention(q, cache, tables, start, positions)
        if len(q) == len(tables):
            out.view(torch.int16)[:, 0] ^= 1
        return out

    monkeypatch.setattr(kernels, "attention", decoding)
    with pytest.raises(AssertionError, match="one by one"):
        test_logits_at_every_split(decoder, drawn)
    with pytest.raises(AssertionError):
        test_scored_as_it_was_drawn(engine, completed(engine, ask("drawn", PROMPT, SAMPLED))["drawn"], {})


def test_counter_noise_by_output_position_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise keyed by how many tokens were drawn: another sample, once the prompt ends elsewhere."""
    import batchgen.engine.sampling as sampling

    right = sampling.sample_rows

    def by_output(sequences: Any) -> Any:
        rows = right(sequences)
        rows.position[:] = [sequence.num_output for sequence in sequences]
        return rows

    monkeypatch.setattr(sampling, "sample_rows", by_output)
    rest, continued = goes_on(engine, replace(PARAMS[2], max_tokens=24), 7)
    assert rest != continued


def test_the_answer_is_worth_scoring(engine: Engine, drawn: Completion) -> None:
    assert len(set(drawn.token_ids)) > 20
    assert json.loads(generate(with_limits(engine), [ask("drawn", PROMPT, SAMPLED)])["drawn"])[2] == list(
        drawn.token_ids
    )
