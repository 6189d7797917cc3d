from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from batchgen.errors import BatchgenError
from batchgen.executor import open_shards
from batchgen.executor.open_shards import OpenShards
from batchgen.executor.probes import Probes
from batchgen.io.schema import Row
from batchgen.plan import Shard
from batchgen.records import Completion, Request, SamplingParams

PARAMS = SamplingParams(n=2)


def request(key: str, index: int, params: SamplingParams = PARAMS) -> Request:
    return Request(key, index, 7, (1,), params)


def answer(key: str, index: int, **fields: Any) -> Completion:
    return Completion(key, index, (5,), "x", "stop", **fields)


def opened(params: SamplingParams = PARAMS, share: float = 0) -> tuple[OpenShards, list[Row]]:
    """Shard 3 of the rows a and b, all asked for."""
    rows: list[Row] = []
    held = OpenShards(params, 100, Probes(share, apart=1), rows.append)
    held.open(Shard(3, 6, 8), pa.table({"x": [1, 2]}))
    for position in range(4):
        held.ask(3, position, request("ab"[position // 2], position % 2, params))
    return held, rows


def test_a_shard_is_complete_when_all_its_samples_are_there() -> None:
    held, rows = opened()
    for key, index in (("b", 1), ("a", 0), ("b", 0)):
        held.answer(answer(key, index))
        assert list(held.take_complete()) == []
    held.answer(answer("a", 1))
    [complete] = held.take_complete()
    assert (complete.shard, complete.probes) == (Shard(3, 6, 8), 0)
    assert [(row.completion.row_key, row.completion.sample_index) for row in complete.rows] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
    ]  # fmt: skip
    assert complete.passthrough["x"].to_pylist() == [1, 2]
    assert len(rows) == 4
    held.check_answered()


def test_a_probe_keeps_its_shard_open() -> None:
    held, rows = opened(share=1)
    for key, index in (("b", 1), ("a", 0), ("b", 0), ("a", 1)):
        held.answer(answer(key, index))
    assert list(held.take_complete()) == []
    due = [replace(request(key, index), fresh=True) for key, index in (("b", 1), ("a", 0), ("b", 0))]
    assert list(held.probes.due()) == due
    with pytest.raises(BatchgenError, match="3 completions never came, among them row 'b' sample 1, row 'a' sample 0"):
        held.check_answered()
    for key, index in (("a", 0), ("b", 0), ("b", 1)):
        held.answer(answer(key, index))
    assert list(held.take_complete()) == []
    assert list(held.probes.rest()) == [replace(request("a", 1), fresh=True)]
    held.answer(answer("a", 1))
    [complete] = held.take_complete()
    assert (complete.probes, len(rows)) == (4, 4)
    held.check_answered()


def test_an_answer_before_its_question_is_named() -> None:
    """A sample that waits to be asked again cannot have been answered again."""
    held, _ = opened(share=1)
    held.answer(answer("a", 0))
    with pytest.raises(BatchgenError, match="row 'a' sample 0: a completion came twice"):
        held.answer(answer("a", 0))


def test_the_slowest_are_those_that_the_engine_had_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 12.0, 13.0, 20.0, 20.5, 20.75, 21.0])
    monkeypatch.setattr(open_shards, "perf_counter", lambda: next(clock))
    held, _ = opened()
    for key, index in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        held.take(request(key, index))
    for key, index in (("b", 1), ("b", 0), ("a", 1), ("a", 0)):
        held.answer(answer(key, index))
    [complete] = held.take_complete()
    assert complete.slowest == ((11.0, "a", 0, 1), (9.75, "a", 1, 1), (8.5, "b", 0, 1))


def test_a_completion_that_comes_twice_is_named() -> None:
    held, _ = opened()
    held.answer(answer("a", 0))
    with pytest.raises(BatchgenError, match="row 'a' sample 0: a completion came twice"):
        held.answer(answer("a", 0))


@pytest.mark.parametrize(("key", "index"), [("c", 0), ("a", 2)])
def test_a_completion_that_nobody_asked_for_is_named(key: str, index: int) -> None:
    held, _ = opened()
    with pytest.raises(BatchgenError, match=f"row '{key}' sample {index}: a completion was not asked for"):
        held.answer(answer(key, index))


def test_completions_that_never_come_are_named() -> None:
    held, _ = opened()
    held.answer(answer("a", 0))
    with pytest.raises(BatchgenError, match="3 completions never came, among them row 'a' sample 1, row 'b' sample 0"):
        held.check_answered()


@pytest.mark.parametrize(
    ("logprobs", "fields"),
    [
        (0, {}),
        (0, {"logprobs": (0.0, 0.0)}),
        (2, {"logprobs": (0.0,)}),
        (2, {"logprobs": (0.0,), "top_logprobs_ids": ((1, 2),), "top_logprobs_values": ()}),
    ],
)
def test_a_completion_without_its_logprobs_is_refused(logprobs: int, fields: dict[str, Any]) -> None:
    held, _ = opened(SamplingParams(n=2, logprobs=logprobs))
    with pytest.raises(BatchgenError, match="row 'a' sample 0: a completion is not whole"):
        held.answer(answer("a", 0, **fields))


@pytest.mark.parametrize(
    ("asked", "fields"), [({"kept_tokens": 9}, {"kept_tokens": ((1,), (2,))}), ({"routed_experts": True}, {})]
)
def test_a_completion_without_its_columns_is_refused(asked: dict[str, Any], fields: dict[str, Any]) -> None:
    held, _ = opened(SamplingParams(n=2, **asked))
    with pytest.raises(BatchgenError, match="row 'a' sample 0: a completion is not whole"):
        held.answer(answer("a", 0, **fields))


def test_an_error_needs_no_logprobs_but_a_code() -> None:
    held, rows = opened(SamplingParams(n=2, logprobs=2))
    held.answer(Completion("a", 0, (), "", "error", error_code="non_finite_logits"))
    assert rows[0].completion.error_code == "non_finite_logits"
    with pytest.raises(BatchgenError, match="not whole"):
        held.answer(Completion("a", 1, (), "", "error"))
