"""Work for replicas: the rows of a shard as they were read, once each, and errors that can travel."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.fake_jobs import make_job, write_input

from batchgen.errors import BatchgenError, EngineError, ModelError, RowError, VerifyError
from batchgen.executor import work
from batchgen.executor.work import Failure, ShardReader, Told
from batchgen.io.reader import InputRow, Inputs, read_passthrough, read_rows
from batchgen.plan import Shard, make_plan

SCHEMA = pa.schema([("row_key", pa.string())])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("in"), 50, bad=[3])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 3, 0, 1, 4], [1, 1, 1]])
def test_shards_in_any_order(folder: Path, order: list[int]) -> None:
    job = make_job(folder)
    plan = make_plan(job.spec, job.inputs, 12)
    reader = ShardReader(job.inputs, SCHEMA)
    for index in order:
        shard = plan.shard(index)
        found = pickle.loads(pickle.dumps(reader.read(shard)))
        assert (found.shard, found.schema) == (shard, SCHEMA)
        rows = list(read_rows(job.inputs, shard.start, shard.stop))
        assert [(row.row_key, row.prompt) for row in found.rows] == [(row.row_key, row.prompt) for row in rows]
        assert found.passthrough.equals(read_passthrough(job.inputs, shard.start, shard.stop))


def test_shards_that_follow_each_other_are_read_in_one_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(folder)
    begun: list[int] = []

    def reading(inputs: Inputs, start: int, stop: int) -> Iterator[InputRow]:
        begun.append(start)
        return read_rows(inputs, start, stop)

    monkeypatch.setattr(work, "read_rows", reading)
    plan = make_plan(job.spec, job.inputs, 10)
    reader = ShardReader(job.inputs, SCHEMA)
    for index in (1, 2, 3, 0, 4):
        reader.read(plan.shard(index))
    assert begun == [10, 0, 40]


def test_a_read_that_fails_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(folder)

    def failing(inputs: Inputs, start: int, stop: int) -> Iterator[InputRow]:
        yield from list(read_rows(inputs, start, stop))[:4]
        raise OSError("torn")

    reader = ShardReader(job.inputs, SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(work, "read_rows", failing)
        with pytest.raises(OSError, match="torn"):
            reader.read(Shard(0, 0, 10))
    assert [row.row_key for row in reader.read(Shard(0, 0, 3)).rows] == ["row-0", "row-1", "row-2"]
    assert [row.row_key for row in reader.read(Shard(1, 3, 5)).rows] == ["row-3", "row-4"]


def test_errors_of_rows_travel() -> None:
    error = pickle.loads(pickle.dumps(RowError("template", "the template refused the messages")))
    assert (type(error), error.code, str(error)) == (RowError, "template", "the template refused the messages")


@pytest.mark.parametrize(
    ("error", "is_loss"),
    [
        (EngineError("out of memory", where="gpu", hint="fewer"), True),
        (ModelError("no such model", where="m"), False),
        (BatchgenError("came twice"), False),
        (ZeroDivisionError("by zero"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_failures_travel(error: BaseException, is_loss: bool) -> None:
    found: Any = pickle.loads(pickle.dumps(Failure.of(error)))
    assert found.is_loss == is_loss
    if isinstance(error, BatchgenError):
        assert type(found.error) is type(error)
        assert str(found.error) == str(error)
    else:
        assert type(found.error) is EngineError
        assert found.error.message.startswith(type(error).__name__)
    assert (found.evidence, found.probe) == (None, None)
    assert not isinstance(found.error, VerifyError)


def test_sums() -> None:
    assert Told(1, 2, 3, 4) + Told(1, 1, 1, 1) - Told(2, 0, 0, 0) == Told(0, 3, 4, 5)
