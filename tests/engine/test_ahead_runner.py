"""Steps computed ahead of their draws, on a CPU: the graphs and the device's sampler are stood in for by the ops."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.model_cases import (
    MAX_MODEL_LEN,
    assert_same,
    generate,
    load_tiny,
    long_requests,
    make_engine,
    requests,
    with_limits,
)
from support.plain_graphs import ahead_on_cpu

from batchgen import kernels
from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.engine import Engine
from batchgen.engine.model_runner import ModelRunner
from batchgen.errors import EngineError
from batchgen.loader import LoadedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("ahead"))


@pytest.fixture(scope="module")
def plain(model: LoadedModel) -> Engine:
    return make_engine(model)


@pytest.fixture(scope="module")
def runner(plain: Engine) -> Iterator[AheadRunner]:
    assert isinstance(plain.runner, ModelRunner)
    with ahead_on_cpu(plain.runner._model, plain.runner._cache, MAX_MODEL_LEN) as made:
        yield made


@pytest.fixture(scope="module")
def alone(plain: Engine) -> dict[str, str]:
    return generate(with_limits(plain, max_num_seqs=1, prefix_cache_blocks=0), (*requests(), *long_requests()))


def ahead(plain: Engine, runner: AheadRunner, **limits: Any) -> Engine:
    engine = with_limits(plain, **{"looks_ahead": True, **limits})
    engine.runner = runner
    runner.taken = 0
    return engine


def test_routes_are_refused(plain: Engine, runner: AheadRunner) -> None:
    """A graph tells nobody what it chose."""
    params = replace(requests()[0].params, routed_experts=True)
    with pytest.raises(EngineError, match="routed_experts: a GPU does not tell"):
        generate(ahead(plain, runner), [replace(requests()[0], params=params)])


@pytest.mark.parametrize("size", [1, 2, 7, 33, 64])
@pytest.mark.parametrize("budget", [1, 33, 256])
def test_nobody_sees_it(plain: Engine, runner: AheadRunner, alone: dict[str, str], size: int, budget: int) -> None:
    engine = ahead(plain, runner, max_num_seqs=size, max_num_batched_tokens=budget)
    assert_same(generate(engine, requests(40)), alone, f"{size} at once, {budget} tokens a step")
    assert runner.taken > engine.stats.output_tokens * (0.7 if budget >= size else 0.0)


def test_prefills_are_queued_before_the_draws_are_known(plain: Engine, runner: AheadRunner) -> None:
    """Answers of one token: nothing decodes, and still all but the first step runs ahead."""
    asked = [replace(request, params=replace(request.params, max_tokens=1, min_tokens=0)) for request in requests(40)]
    expected = generate(with_limits(plain, max_num_seqs=1, prefix_cache_blocks=0), asked)
    for budget, cached in ((40, 0), (100, 0), (100, 50)):
        engine = ahead(plain, runner, max_num_batched_tokens=budget, max_num_seqs=256, prefix_cache_blocks=cached)
        assert_same(generate(engine, asked), expected, f"{budget} tokens a step")
        assert runner.taken >= 30


@pytest.mark.parametrize("num_blocks", [5, 6, 9, 20])
@pytest.mark.parametrize("cached", [0, 1])
def test_preemption_and_the_prefix_cache(
    plain: Engine, runner: AheadRunner, alone: dict[str, str], num_blocks: int, cached: int
) -> None:
    limits = {"num_blocks": num_blocks, "prefix_cache_blocks": cached * num_blocks, "max_num_batched_tokens": 48}
    engine = ahead(plain, runner, **limits)
    assert_same(generate(engine, [*long_requests(), *requests(), *long_requests()[::-1]][:80]), alone, f"{limits}")
    assert engine.stats.preemptions > 0 or num_blocks == 20
    assert runner.taken > 100


def test_ends_that_nobody_foresaw(plain: Engine, runner: AheadRunner, model: LoadedModel) -> None:
    often = replace(plain.model, eos_token_ids=frozenset(range(0, model.config.vocab_size, 9)))

    def ending(engine: Engine) -> dict[str, str]:
        engine.model = often
        return generate(engine, (*long_requests(), *requests()))

    expected = ending(with_limits(plain, max_num_seqs=1, prefix_cache_blocks=0))
    for num_blocks in (6, 12, 400):
        limits = {"num_blocks": num_blocks, "prefix_cache_blocks": num_blocks}
        assert_same(ending(ahead(plain, runner, **limits)), expected, f"{num_blocks} blocks")


def test_closed_early_and_begun_anew(plain: Engine, runner: AheadRunner, alone: dict[str, str]) -> None:
    engine = ahead(plain, runner)
    stream = engine.generate(requests())
    next(stream)
    stream.close()
    assert_same(generate(engine, requests()), alone, "after another was closed")


def test_while_it_is_watched_nothing_runs_ahead(plain: Engine, runner: AheadRunner, alone: dict[str, str]) -> None:
    seen: list[str] = []
    with kernels.watch(lambda op, outputs: seen.append(op)):
        assert_same(generate(ahead(plain, runner), requests(8)), alone, "watched")
    assert seen
    assert runner.taken == 0


def test_counter_logits_of_another_row_are_seen(
    plain: Engine, runner: AheadRunner, alone: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = runner.graphs.forward
    monkeypatch.setattr(runner.graphs, "forward", lambda *given, **size: forward(*given, **size).flip(0))
    found = generate(ahead(plain, runner), requests())
    assert sum(found[key] != alone[key] for key in found) > 10
