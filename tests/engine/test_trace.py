"""Traces: one sequence's ops in any company, computed once, twice or by others, and what differs first."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from support.model_cases import load_tiny, long_requests, make_engine, requests

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.engine.trace import Place, Recorder, Trace, TracingRunner, first_difference
from batchgen.errors import EngineError
from batchgen.kernels import cpu
from batchgen.loader import LoadedModel
from batchgen.models.op_names import op_names
from batchgen.records import Completion, Request

FAR = 10**6
CROWDED: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 48, "num_blocks": 6}  # some are preempted
PREEMPTED = 7  # of the long requests; the counter-test would fail if it were not


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("trace"))


def trace(
    model: LoadedModel, target: Request, company: tuple[Request, ...] = (), keep: Place | None = None, **how: Any
) -> tuple[Trace, Completion, Engine]:
    """Of `target`, in its place among its company, or after all of it."""
    engine = make_engine(model, **how)
    recorder = Recorder(op_names(model.config), keep)
    engine.runner = TracingRunner(engine.runner, recorder, target)
    wanted = company if target in company else (*company, target)
    done = {completion.row_key: completion for completion in engine.generate(wanted)}
    return recorder.trace, done[target.row_key], engine


def positions(found: Trace) -> set[int]:
    return {place.position for place in found.digests}


def test_alone_each_position_has_every_op_once(model: LoadedModel) -> None:
    target = requests()[2]
    found, completion, _ = trace(model, target)
    last = len(target.prompt_token_ids) + len(completion.token_ids) - 1  # the last token is not computed
    assert positions(found) == set(range(last))
    assert all(len(digests) == 1 for digests in found.digests.values())
    drawn = {place.position for place in found.digests if found.names[place.op].drawn}
    assert drawn == set(range(len(target.prompt_token_ids) - 1, last))
    undrawn = len(found.names) - 3
    assert len(found.digests) == undrawn * last + 3 * len(drawn)


@pytest.mark.parametrize(
    "how",
    [
        {"max_num_seqs": 64},
        {"max_num_seqs": 8, "max_num_batched_tokens": 7},
        {"max_num_seqs": 5, "prefix_cache": False, "threads": 2},
    ],
)
def test_company_cannot_be_seen(model: LoadedModel, how: dict[str, Any]) -> None:
    target = requests()[9]
    alone, expected, _ = trace(model, target)
    crowded, completion, _ = trace(model, target, requests(24), **how)
    assert completion == expected
    assert first_difference(alone, crowded, FAR) is None
    assert alone.digests.keys() == crowded.digests.keys()


def test_counter_another_sequence_has_another_trace(model: LoadedModel) -> None:
    """Digests are of contents: one prompt token apart, and all ops of that position differ, none before."""
    target = requests()[9]
    ids = list(target.prompt_token_ids)
    ids[5] += 1
    a, _, _ = trace(model, target)
    b, _, _ = trace(model, replace(target, prompt_token_ids=tuple(ids)))
    assert first_difference(a, b, FAR) == Place(5, 0)
    assert first_difference(a, b, 5) is None


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_preempted_and_computed_again(model: LoadedModel, prefix_cache: bool) -> None:
    target = long_requests()[PREEMPTED]
    alone, expected, _ = trace(model, target)
    how = CROWDED | {"prefix_cache": prefix_cache}
    crowded, completion, engine = trace(model, target, long_requests(), **how)
    assert engine.stats.preemptions > 0
    assert completion == expected
    assert first_difference(alone, crowded, FAR) is None


def test_counter_another_value_the_second_time_is_found(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in steps of a few rows: what was decoded differs from what is computed again in a prefill."""
    target = long_requests()[PREEMPTED]
    engine = make_engine(model, **CROWDED, prefix_cache=False)
    recorder = Recorder(op_names(model.config))
    engine.runner = TracingRunner(engine.runner, recorder, target)
    right, calls = cpu.linear_silu_mul, count()

    def twin(x: torch.Tensor, weight: Any) -> torch.Tensor:
        out = right(x, weight)
        if next(calls) % 2 and len(x) < 9:  # layer 1
            out.view(torch.int16)[:, 0] ^= 1
        return out

    monkeypatch.setattr(cpu, "linear_silu_mul", twin)
    list(engine.generate(long_requests()))
    found = recorder.trace
    place = first_difference(found, found, FAR)
    assert place is not None
    assert len(found.digests[place]) == 2
    assert str(found.names[place.op]) == "layer 1, gate and up linear"


def test_what_another_sequence_computed_is_there(model: LoadedModel) -> None:
    """A prefix-cache hit: the target itself never computes its first block."""
    target = requests()[10]  # of 70 tokens
    other = replace(target, row_key="other", seed=1)
    alone, _, _ = trace(model, target)
    shared, _, engine = trace(model, target, (other,))
    assert engine.stats.cached_tokens == 64
    assert first_difference(alone, shared, FAR) is None
    assert positions(shared) == positions(alone)


def test_tokens_that_part_are_not_the_target_s(model: LoadedModel) -> None:
    """Of a sequence that begins alike, nothing from its first other token on."""
    target = requests()[10]
    ids = (*target.prompt_token_ids[:40], 7, *target.prompt_token_ids[41:])
    other = replace(target, row_key="other", prompt_token_ids=ids)
    assert ids != target.prompt_token_ids
    alone, _, _ = trace(model, target)
    beside, _, _ = trace(model, target, (other,))
    assert first_difference(alone, beside, FAR) is None


def test_outputs_of_one_place_are_kept(model: LoadedModel) -> None:
    target = requests()[1]
    names = op_names(model.config)
    at = next(i for i, name in enumerate(names) if (name.layer, name.op) == (1, "rotary_store"))
    found, _, _ = trace(model, target, keep=Place(4, at))
    [kept] = found.kept
    assert {name: array.shape for name, array in kept.items()} == {"q": (4, 32), "k": (2, 32), "v": (2, 32)}
    assert {array.dtype for array in kept.values()} == {torch.bfloat16}


def test_nans_are_one_whatever_their_bits(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which NaN an operation gives is of no profile: a row that is not finite does not part for it."""
    traces = []
    for bits in (0x7FC0, -0x3F, 0x3F80):  # a NaN, another one with its sign set, 1
        out = torch.full((1, 4), bits, dtype=torch.int16).view(torch.bfloat16)
        monkeypatch.setattr(cpu, "rms_norm", lambda *_, out=out: out)
        recorder = Recorder(op_names(model.config)[1:2])
        with recorder.step([(0, 0)], []):
            kernels.rms_norm(torch.ones(1, 4), torch.ones(4), 1e-5)
        traces.append(recorder.trace)
    assert first_difference(traces[0], traces[1], FAR) is None
    assert first_difference(traces[0], traces[2], FAR) == Place(0, 0)


def test_ops_that_are_not_the_names_are_refused(model: LoadedModel) -> None:
    names = op_names(model.config)
    with pytest.raises(EngineError, match="op 0 of a step is linear, and embedding was expected"):
        launch(Recorder(names))
    with pytest.raises(EngineError, match="a step launched 1 ops, and the model has 20"):
        launch(Recorder((replace_op(names), *names[1:])))


def replace_op(names: Any) -> Any:
    return names[0]._replace(op="linear")


def launch(recorder: Recorder) -> None:
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    with recorder.step([], []):
        kernels.linear(x, kernels.PackedWeight(torch.ones(1, 16, 32, 2, dtype=torch.bfloat16), 32))
