"""Steps computed ahead of their draws, on a CPU: the graphs and the device's sampler are stood in for by the ops."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
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

from batchgen import kernels
from batchgen.engine import ahead_runner
from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.decode_graphs import FromDraws, GraphSize, Row
from batchgen.engine.engine import Engine
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.step_ahead import StepAhead
from batchgen.kernels.sample_rows import Draws, SampleRows
from batchgen.layers.step import StepTensors
from batchgen.loader import LoadedModel
from batchgen.models.any_decoder import AnyDecoder, Cache

I32 = torch.int32


@dataclass
class PlainGraphs:
    """What DecodeGraphs computes, without a graph; nobody may keep what an earlier call gave."""

    decoder: AnyDecoder
    cache: list[Cache]
    last: torch.Tensor | None = None

    def forward(
        self, rows: Sequence[Row], draws: FromDraws | None = None, size: GraphSize | None = None
    ) -> torch.Tensor:
        assert size
        assert len(rows) <= size.rows
        assert all(row.position < size.positions for row in rows)
        ids = [row.token_id for row in rows]
        if draws:
            tokens, which = draws
            ids = tokens.clamp(min=0).tolist() if which is None else tokens[torch.tensor(which)].clamp(min=0).tolist()
        width = max(len(row.block_table) for row in rows)
        slots = [row.block_table[row.position // 32] * 32 + row.position % 32 for row in rows]
        step = StepTensors(
            token_ids=torch.tensor(ids, dtype=I32),
            positions=torch.tensor([row.position for row in rows], dtype=I32),
            slots=torch.tensor(slots),
            query_start=torch.arange(len(rows) + 1, dtype=I32),
            block_tables=torch.tensor([(row.block_table + [0] * width)[:width] for row in rows], dtype=I32),
            sample_rows=torch.arange(len(rows)),
        )
        if self.last is not None:
            self.last.fill_(torch.nan)
        self.last = self.decoder.forward(step, self.cache).clone()
        return self.last


@dataclass
class HostDraws:
    """Draws as of a device."""

    draws: Draws

    @property
    def token(self) -> torch.Tensor:
        return torch.from_numpy(self.draws.token)

    def fetch(self) -> Callable[[], Draws]:
        return lambda: self.draws


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("ahead"))


@pytest.fixture(scope="module")
def plain(model: LoadedModel) -> Engine:
    return make_engine(model)


@pytest.fixture(scope="module")
def runner(plain: Engine) -> Iterator[AheadRunner]:
    assert isinstance(plain.runner, ModelRunner)
    decoder, cache = plain.runner._model, plain.runner._cache

    def draw(logits: torch.Tensor, rows: SampleRows, *, processed_logprobs: bool) -> HostDraws:
        return HostDraws(kernels.sample(logits.contiguous(), rows, processed_logprobs=processed_logprobs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        patch.setattr(ahead_runner, "upload", lambda rows, V, device: rows)
        patch.setattr(ahead_runner, "draw", draw)
        made = AheadRunner(decoder, cache, MAX_MODEL_LEN, processed_logprobs=False)
        made.graphs = PlainGraphs(decoder, cache)  # type: ignore[assignment]
        made._ahead = StepAhead(made.graphs)
        yield made


@pytest.fixture(scope="module")
def alone(plain: Engine) -> dict[str, str]:
    return generate(with_limits(plain, max_num_seqs=1, prefix_cache_blocks=0), (*requests(), *long_requests()))


def ahead(plain: Engine, runner: AheadRunner, **limits: Any) -> Engine:
    engine = with_limits(plain, **{"looks_ahead": True, **limits})
    engine.runner = runner
    runner.taken = 0
    return engine


@pytest.mark.parametrize("size", [1, 2, 7, 33, 64])
@pytest.mark.parametrize("budget", [1, 33, 256])
def test_nobody_sees_it(plain: Engine, runner: AheadRunner, alone: dict[str, str], size: int, budget: int) -> None:
    engine = ahead(plain, runner, max_num_seqs=size, max_num_batched_tokens=budget)
    assert_same(generate(engine, requests(40)), alone, f"{size} at once, {budget} tokens a step")
    assert runner.taken > engine.stats.output_tokens * (0.7 if budget >= size else 0.0)


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
