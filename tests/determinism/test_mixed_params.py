"""Sampling parameters of other kinds in one batch: every pair and every triple.

Guards against a sampler that takes another path for all rows when one of them filters (SGLang PR #35697: noise keyed by
rank or by token id), against greedy rows drawn at a tiny temperature, top_k = 1 that is not argmax on ties (vLLM PR
#41598), a seed that a mate without one turns off (vLLM #51226), and rows left without any token (SGLang #33697).
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from support.model_cases import ask, assert_same, generate, ids, load_edited, make_engine, with_limits

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.cpu import sample as exact_sample
from batchgen.kernels.reference.noise import DRAW_LANE, gumbel
from batchgen.kernels.sample_rows import Draws, SampleRows
from batchgen.loader import LoadedModel
from batchgen.records import Request, SamplingParams

BASE = SamplingParams(max_tokens=6, logprobs=2)
KINDS: dict[str, SamplingParams] = {
    "greedy": replace(BASE, temperature=0.0),
    "plain": BASE,
    "hot": replace(BASE, temperature=1.7, ignore_eos=True),
    "top_k": replace(BASE, top_k=9),
    "top_k_1": replace(BASE, top_k=1),
    "top_p": replace(BASE, top_p=0.7),
    "min_p": replace(BASE, min_p=0.1),
    "repetition": replace(BASE, repetition_penalty=1.4),
    "presence": replace(BASE, presence_penalty=1.0, frequency_penalty=-0.5),
    "bias": replace(BASE, logit_bias={5: 4.0, 77: -100.0, 120: 2.5}),
    "stop": replace(BASE, max_tokens=12, stop=("e", " t"), include_stop_str_in_output=True),
    "bad_words": replace(BASE, top_k=30),
    "min_tokens": replace(BASE, min_tokens=5, stop_token_ids=tuple(range(30, 90))),
    "no_logprobs": replace(BASE, logprobs=None, top_k=5),
    "all_logprobs": replace(BASE, logprobs=20, temperature=0.5),
}
BAD_WORDS = ((4,), (9, 10), (101,))


def of_kind(kind: str) -> Request:
    place = list(KINDS).index(kind)
    words = BAD_WORDS if kind == "bad_words" else ()
    return ask(kind, ids(3 + 5 * place % 40, place, 1 + place % 3), KINDS[kind], bad_words=words)


@pytest.fixture(scope="module")
def single(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1), map(of_kind, KINDS))


def together(engine: Engine, kinds: Iterable[str]) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=16), map(of_kind, kinds))


def test_every_pair(engine: Engine, single: dict[str, str]) -> None:
    for pair in combinations(KINDS, 2):
        assert_same(together(engine, pair), single, " beside ".join(pair))
        assert_same(together(engine, pair[::-1]), single, " beside ".join(pair[::-1]))


def test_every_triple(engine: Engine, single: dict[str, str]) -> None:
    for three in combinations(KINDS, 3):
        assert_same(together(engine, three), single, " beside ".join(three))


def test_all_kinds_at_once(engine: Engine, single: dict[str, str]) -> None:
    for turn in range(len(KINDS)):
        kinds = [*KINDS][turn:] + [*KINDS][:turn]
        assert_same(together(engine, kinds), single, f"turned by {turn}")


def test_processed_logprobs(model: LoadedModel) -> None:
    """Recorded after the filters, which mates must not change either."""
    engine = make_engine(model, logprobs_mode="processed")
    single = generate(with_limits(engine, max_num_seqs=1), map(of_kind, KINDS))
    assert_same(together(engine, KINDS), single, "all kinds, processed")
    for pair in list(combinations(KINDS, 2))[::4]:
        assert_same(together(engine, pair), single, " beside ".join(pair))


@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_row_with_nothing_to_draw(engine: Engine, single: dict[str, str], kind: str) -> None:
    """A row all of whose tokens are banned is an error row of its own."""
    vocab = engine.model.vocab_size
    barren = ask("barren", ids(7), KINDS["top_p"], bad_words=tuple((i,) for i in range(vocab)))
    answers = generate(with_limits(engine, max_num_seqs=3), [barren, of_kind(kind)])
    assert "non_finite_logits" in answers.pop("barren")
    assert_same(answers, single, f"{kind} beside a row with nothing to draw")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model whose tokens 40, 50 and 60 have the same row in the head, so that their logits always tie."""

    def edit(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"][[50, 60]] = weights["lm_head.weight"][40].clone()

    return make_engine(load_edited(tmp_path_factory.mktemp("tied"), edit), num_blocks=60)


def test_top_k_1_is_greedy_on_ties(tied: Engine) -> None:
    """The three tie far above all others: the lowest id is the answer, alone and among rows of every kind."""
    lifted = replace(BASE, logit_bias={40: 100.0, 50: 100.0, 60: 100.0})
    ties = {
        "tied, greedy": replace(lifted, temperature=0.0),
        "tied, top_k 1": replace(lifted, top_k=1),
        "tied, tiny top_p": replace(lifted, top_p=1e-9),
        "tied, all at once": replace(lifted, temperature=0.0, top_k=1, min_p=1.0),
    }
    wanted = [ask(name, ids(9), params) for name, params in ties.items()]
    mates = [of_kind(kind) for kind in KINDS]
    for batch in (wanted, wanted[::-1], [*mates, *wanted]):
        for completion in with_limits(tied, max_num_seqs=32).generate(batch):
            if completion.row_key in ties:
                assert completion.token_ids == (40,) * 6, completion.row_key


def test_a_tie_that_is_drawn_is_drawn_alike(tied: Engine) -> None:
    """Of tied tokens the noise decides, by their ids: all three are drawn, each row as it is alone."""
    lifted = replace(BASE, logit_bias={40: 100.0, 50: 100.0, 60: 100.0}, top_k=3, ignore_eos=True)
    wanted = [ask(f"tie-{i}", ids(4 + i), lifted) for i in range(8)]
    single = generate(with_limits(tied, max_num_seqs=1), wanted)
    drawn = {token for answer in single.values() for token in json.loads(answer)[2]}
    assert drawn == {40, 50, 60}
    assert_same(generate(with_limits(tied, max_num_seqs=8), wanted), single, "ties together")


def noise_by_rank(logits: torch.Tensor, rows: SampleRows, *, processed_logprobs: bool) -> Draws:
    """The sampler as it should be, but where any row of the batch filters: then the noise goes by rank, for all."""
    draws = exact_sample(logits, rows, processed_logprobs=processed_logprobs)
    if ((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)).any():
        for r in np.flatnonzero((rows.temperature > 0) & (draws.finite > 0)):
            kept = np.flatnonzero(logits[r].numpy() > logits[r].max().item() - 3)
            ranked = kept[np.argsort(-logits[r].numpy()[kept], kind="stable")]
            noise = gumbel(int(rows.seed[r]), int(rows.position[r]), DRAW_LANE, len(ranked))
            draws.token[r] = ranked[np.argmax(logits[r].numpy()[ranked] + noise)]
    return draws


def test_counter_noise_that_mates_change_is_caught(
    engine: Engine, single: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "sample", noise_by_rank)
    assert_same(together(engine, ["plain", "hot", "greedy"]), single, "nobody filters")
    with pytest.raises(AssertionError, match="plain differs"):
        assert_same(together(engine, ["plain", "top_k"]), single, "plain beside top_k")


def test_counter_greedy_at_a_tiny_temperature_is_caught(tied: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy rows drawn like all others once the batch is mixed: on a tie, the noise decides."""

    def drawn(logits: torch.Tensor, rows: SampleRows, *, processed_logprobs: bool) -> Draws:
        if (rows.temperature > 0).any():
            rows = replace(rows, temperature=np.maximum(rows.temperature, np.float32(1e-6)))
        return exact_sample(logits, rows, processed_logprobs=processed_logprobs)

    monkeypatch.setattr(kernels, "sample", drawn)
    lifted = replace(BASE, temperature=0.0, logit_bias={40: 100.0, 50: 100.0, 60: 100.0})
    wanted = [ask(f"greedy-{i}", ids(9), lifted) for i in range(3)]
    single = generate(with_limits(tied, max_num_seqs=1), wanted)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(
            {k: v for k, v in generate(with_limits(tied), [*wanted, of_kind("plain")]).items() if k != "plain"},
            single,
            "mixed",
        )
