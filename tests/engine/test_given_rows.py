"""Requests whose output is given: what is refused, what they cost, and that a runner that computes ahead takes them."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_cases import (
    MAX_MODEL_LEN,
    ask,
    generate,
    ids,
    load_edited,
    load_tiny,
    make_engine,
    requests,
    with_limits,
)
from support.plain_graphs import ahead_on_cpu

from batchgen.engine.engine import Engine
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.scoring import requests_of, score
from batchgen.errors import EngineError, RowError
from batchgen.loader import LoadedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def engine(model: LoadedModel) -> Engine:
    return make_engine(model)


def test_the_greedy_answer_is_greedy(engine: Engine) -> None:
    params = replace(requests()[0].params, max_tokens=20, ignore_eos=True)
    (drawn,) = engine.generate([ask("drawn", ids(20), params)])
    (found,) = score(engine, [(ids(20), drawn.token_ids)])
    assert found.is_greedy
    assert found.logprobs == drawn.logprobs
    other = (*drawn.token_ids[:7], 5, *drawn.token_ids[8:])
    assert drawn.token_ids[7] != 5
    (found,) = score(engine, [(ids(20), other)])
    assert not found.is_greedy
    assert found.greedy[:8] == (True,) * 7 + (False,)
    assert found.logprobs[:7] == drawn.logprobs[:7]


def test_the_sum_is_rounded_once(engine: Engine) -> None:
    (found,) = score(engine, [(ids(1), ids(30))])
    exact = sum(map(Fraction, found.logprobs))
    assert found.total == float(exact)
    assert found.total < 0


def test_in_the_order_of_the_pairs(engine: Engine) -> None:
    pairs = [(ids(1 + 7 * i), ids(1 + 11 * i % 29, first=i)) for i in range(12)]
    together = score(engine, pairs)
    assert together == [score(engine, [pair])[0] for pair in pairs]
    assert [len(found.logprobs) for found in together] == [len(continuation) for _, continuation in pairs]
    assert score(engine, []) == []


@pytest.mark.parametrize(
    ("pair", "error", "says"),
    [
        (((), (5,)), RowError, "pair 1: the prompt has no token"),
        (((5,), ()), EngineError, "holds no token"),
        (((5,), (6, 100_000)), EngineError, r"ids \[100000\] lie outside the vocabulary"),
        (((-1,), (6,)), RowError, r"pair 1: prompt ids \[-1\] lie outside"),
        ((ids(100), ids(62)), RowError, "100 prompt tokens [+] 62 of the continuation exceed max_model_len 160"),
    ],
)
def test_refused(engine: Engine, pair: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        score(engine, [(ids(3), ids(2)), pair])
    assert len(score(engine, [(ids(100), ids(61))])[0].logprobs) == 61, "goes on, and takes the longest"


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    """The row fails where they first are wanted, and the others do not."""

    def edit(weights: dict[str, torch.Tensor]) -> None:
        embedding = weights["model.embed_tokens.weight"]
        embedding[:, 0] = 0
        embedding[77, 0] = 100  # a channel of this token alone, which only the values of the cache read
        for name, weight in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[0] = 0
            elif name.endswith("v_proj.weight"):
                weight[:, 0] = 3e38

    engine = make_engine(load_edited(tmp_path, edit))
    good, bad = requests_of([(ids(9), ids(5)), (ids(9), (*ids(5), 77, 8))])
    done = {completion.row_key: completion for completion in engine.generate([bad, good])}
    assert done["0"].error_code is None
    assert done["1"].error_code == "non_finite_logits"
    assert "output position 6" in str(done["1"].error_message)
    assert done["1"].logprobs is None


@pytest.mark.parametrize("limits", [{}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 20, "num_blocks": 8}], ids=str)
@pytest.mark.parametrize("processed", [False, True])
def test_computed_ahead(model: LoadedModel, limits: dict[str, Any], processed: bool) -> None:
    plain = make_engine(model, logprobs_mode="processed" if processed else "raw")
    assert isinstance(plain.runner, ModelRunner)
    pairs = [(ids(1 + 7 * i), ids(1 + 11 * i % 29, first=i)) for i in range(12)]
    mixed = [each for pair in zip(requests(12), requests_of(pairs, requests()[4].params), strict=True) for each in pair]
    expected = generate(with_limits(plain, max_num_seqs=1, prefix_cache_blocks=0), mixed)
    with ahead_on_cpu(plain.runner._model, plain.runner._cache, MAX_MODEL_LEN) as runner:
        runner._processed_logprobs = processed
        engine = with_limits(plain, looks_ahead=True, **limits)
        engine.runner = runner
        assert generate(engine, mixed) == expected
        assert runner.taken


def test_prompts_computed_ahead(model: LoadedModel) -> None:
    """A prompt whose logprobs are wanted is cut so that a step has rows for them."""
    plain = make_engine(model)
    assert isinstance(plain.runner, ModelRunner)
    wanted = [
        replace(each, params=replace(each.params, prompt_logprobs=1 if index % 2 else None))
        for index, each in enumerate(requests(20))
    ]
    expected = generate(with_limits(plain, max_num_seqs=1, prefix_cache_blocks=0), wanted)
    with ahead_on_cpu(plain.runner._model, plain.runner._cache, MAX_MODEL_LEN) as runner:
        for limits in ({}, {"max_num_seqs": 4, "max_num_batched_tokens": 30, "num_blocks": 9}):
            engine = with_limits(plain, looks_ahead=True, **limits)
            engine.runner = runner
            assert generate(engine, wanted) == expected


def test_a_step_has_no_more_rows_than_sequences(engine: Engine) -> None:
    """What a GPU keeps room for: the logits of so many positions."""
    most = 0

    def counted(rows: int) -> None:
        nonlocal most
        most = max(most, rows)

    class Counting:
        def step(self, chunks: Any) -> Any:
            counted(sum(chunk.num_rows for chunk in chunks))
            return engine.runner.step(chunks)

    small = with_limits(engine, max_num_seqs=5)
    small.runner = Counting()
    pairs = [(ids(3), ids(40, first=i)) for i in range(7)]
    mixed = [*requests_of(pairs), *requests(9)]
    assert generate(small, mixed).keys() == {each.row_key for each in mixed}
    assert most == 5
