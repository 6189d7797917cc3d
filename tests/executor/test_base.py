from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, write_input

from batchgen.errors import BatchgenError, RowError
from batchgen.executor.base import Job, run_shards
from batchgen.executor.open_shards import OpenShard, OpenShards
from batchgen.executor.probes import Probes
from batchgen.io.reader import InputRow
from batchgen.io.schema import Row
from batchgen.plan import make_plan
from batchgen.records import Completion, Request
from batchgen.seeds import sample_seed

Committed = dict[int, tuple[list[Row], pa.Table]]


def shards_for(job: Job, window: int, on_row: Callable[[Row], None] = lambda row: None) -> OpenShards:
    return OpenShards(job.params, window, Probes(0), on_row)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in", 50, bad=[3, 40])


def make(
    folder: Path, engine: FakeEngine, window: int = 100, per_shard: int = 8, skip: tuple[int, ...] = ()
) -> Committed:
    job = make_job(folder)
    committed: Committed = {}

    def commit(complete: OpenShard) -> None:
        assert complete.shard.index not in committed
        assert complete.passthrough.num_rows == complete.shard.num_rows
        committed[complete.shard.index] = complete.rows, complete.passthrough

    shards = [shard for shard in make_plan(job.spec, job.inputs, per_shard).shards if shard.index not in skip]
    run_shards(job, shards, engine, shards_for(job, window), commit)
    assert sorted(committed) == [shard.index for shard in shards]
    return committed


def in_order(committed: Committed) -> list[Row]:
    return [row for index in sorted(committed) for row in committed[index][0]]


@pytest.mark.parametrize("max_num_seqs", [1, 2, 7, 64])
@pytest.mark.parametrize("per_shard", [1, 7, 50])
@pytest.mark.parametrize("window", [1, 30, 1000])
def test_order_batch_shards_and_window_cannot_be_seen(
    inputs: Path, max_num_seqs: int, per_shard: int, window: int
) -> None:
    reference = in_order(make(inputs, FakeEngine()))
    engine = FakeEngine(order=max_num_seqs, max_num_seqs=max_num_seqs)
    assert in_order(make(inputs, engine, window, per_shard)) == reference
    assert len(reference) == 100


def test_each_sample_has_its_seed(inputs: Path) -> None:
    for position, row in enumerate(in_order(make(inputs, FakeEngine()))):
        key, index = f"row-{position // 2}", position % 2
        assert (row.completion.row_key, row.completion.sample_index) == (key, index)
        assert row.seed == sample_seed(0, key, index)


def test_a_prompt_that_fails_never_reaches_the_engine(inputs: Path) -> None:
    engine = FakeEngine()
    rows = in_order(make(inputs, engine))
    assert {request.row_key for request in engine.asked}.isdisjoint({"row-3", "row-40"})
    for position in (6, 7, 80, 81):
        assert rows[position].completion.error_code == "prompt_null"
        assert rows[position].prompt_token_ids is None


def test_a_job_of_failures_alone_asks_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    rows = in_order(make(write_input(tmp_path, 50, bad=range(50)), engine, window=5))
    assert len(rows) == 100
    assert engine.asked == []


def test_an_error_of_the_engine_is_a_row(tmp_path: Path) -> None:
    folder = write_input(tmp_path, 3)

    @dataclass
    class Failing(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            for r in filter(None, requests):
                yield Completion(r.row_key, r.sample_index, (), "", "error", error_code="non_finite_logits")

    rows = in_order(make(folder, Failing()))
    assert [row.completion.finish_reason for row in rows] == ["error"] * 6
    assert rows[0].prompt_token_ids is not None


def test_a_bad_row_with_a_prompt_that_breaks_everything(tmp_path: Path) -> None:
    def build(row: InputRow) -> list[int]:
        raise RowError("prompt_encoding", f"bad \udcb2 {row.prompt}")

    job = make_job(write_input(tmp_path, 2, bad=[1]), build)
    rows: list[Row] = []
    held = shards_for(job, 9, rows.append)
    run_shards(job, list(make_plan(job.spec, job.inputs, 2).shards), FakeEngine(), held, lambda _: None)
    assert [row.completion.error_message for row in rows] == ["bad \udcb2 prompt 0"] * 2 + ["bad \udcb2 None"] * 2


def test_the_engine_is_kept_full_across_shards(inputs: Path) -> None:
    engine = FakeEngine(max_num_seqs=16)
    make(inputs, engine, per_shard=1)
    assert engine.most_held == 16
    assert engine.calls == 1


def test_a_slow_row_holds_no_more_than_the_window(inputs: Path) -> None:
    job = make_job(inputs)
    held: list[int] = []
    open_samples = 0

    def commit(complete: OpenShard) -> None:
        nonlocal open_samples
        open_samples -= len(complete.rows)

    def on_row(row: Row) -> None:
        nonlocal open_samples
        open_samples += 1
        held.append(open_samples)

    engine = FakeEngine(max_num_seqs=4, slow=frozenset({"row-0"}))
    run_shards(job, list(make_plan(job.spec, job.inputs, 5).shards), engine, shards_for(job, 20, on_row), commit)
    assert max(held) <= 20 + 10
    assert engine.calls > 1


def test_a_slow_row_does_not_stop_other_shards(inputs: Path) -> None:
    committed = make(inputs, FakeEngine(slow=frozenset({"row-0"})), window=1000)
    assert list(committed)[-1] == 0


def test_passthrough_goes_with_its_rows_also_past_a_gap(inputs: Path) -> None:
    everything = make(inputs, FakeEngine())
    some = make(inputs, FakeEngine(), skip=(0, 2, 3))
    assert sorted(some) == [1, 4, 5, 6]
    for index, (samples, passthrough) in some.items():
        assert samples == everything[index][0]
        assert passthrough.equals(everything[index][1])
        first = int(samples[0].completion.row_key.removeprefix("row-"))
        assert passthrough["label"][0].as_py() == ["a", "b", None][first % 3]


def test_an_engine_that_loses_a_request_is_caught(inputs: Path) -> None:
    @dataclass
    class Losing(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            return (c for c in FakeEngine.generate(self, requests) if (c.row_key, c.sample_index) != ("row-9", 1))

    with pytest.raises(BatchgenError, match="1 completions never came, among them row 'row-9' sample 1"):
        make(inputs, Losing())


def test_an_engine_that_answers_twice_is_caught(inputs: Path) -> None:
    @dataclass
    class Stuttering(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            for completion in FakeEngine.generate(self, requests):
                yield completion
                yield completion

    with pytest.raises(BatchgenError, match="came twice"):
        make(inputs, Stuttering())
