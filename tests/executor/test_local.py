import json
import logging
import shutil
import signal
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_engine import FINGERPRINT, FakeEngine
from support.fake_jobs import JOB_YAML, make_job, read_rows, run, write_input

from batchgen.errors import EngineError, Interrupted, RunError, VerifyError
from batchgen.executor.base import Progress
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import part_name, read_manifest
from batchgen.records import Completion, Request
from batchgen.verify.integrity import verify_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in", 50, bad=[3])


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_run_and_its_report(folder: Path, tmp_path: Path) -> None:
    report = run(make_job(folder), tmp_path / "run")
    assert (report.counts.rows, report.counts.error, report.resumed, report.exit_code) == (100, 2, 0, 3)
    assert report.root == read_manifest(tmp_path / "run").root
    assert verify_run(tmp_path / "run").ok
    assert (tmp_path / "run" / "job.yaml").read_bytes() == JOB_YAML
    table = read_rows(tmp_path / "run")
    assert table["row_key"].to_pylist() == [f"row-{at // 2}" for at in range(100)]
    assert table["label"].to_pylist() == [["a", "b", None][at // 2 % 3] for at in range(100)]
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert {name: metadata[f"batchgen.{name}"] for name in FINGERPRINT} == FINGERPRINT
    assert metadata["batchgen.job_fingerprint"] == make_job(folder).spec.fingerprint()
    assert (metadata["batchgen.schema_version"], metadata["batchgen.logprobs_mode"]) == ("2", "raw")


def test_no_error_rows_is_exit_0(tmp_path: Path) -> None:
    assert run(make_job(write_input(tmp_path / "in", 3)), tmp_path / "run").exit_code == 0


@pytest.mark.parametrize(("per_shard", "max_num_seqs"), [(1, 1), (3, 64), (50, 5), (1000, 8)])
def test_the_root_does_not_know_how_it_was_made(
    folder: Path, tmp_path: Path, per_shard: int, max_num_seqs: int
) -> None:
    expected = run(make_job(folder), tmp_path / "a").root
    engine = FakeEngine(order=per_shard, max_num_seqs=max_num_seqs)
    assert run(make_job(folder), tmp_path / "b", engine, per_shard).root == expected


def test_the_root_knows_the_seed(folder: Path, tmp_path: Path) -> None:
    assert run(make_job(folder), tmp_path / "a").root != run(make_job(folder, seed=1), tmp_path / "b").root


def test_more_samples_keep_the_first(folder: Path, tmp_path: Path) -> None:
    for n in (1, 3):
        run(make_job(folder, sampling={"n": n}), tmp_path / str(n))
    three = read_rows(tmp_path / "3")
    first = three.filter(pa.compute.equal(three["sample_index"], 0))
    assert first["row_hash"].to_pylist() == read_rows(tmp_path / "1")["row_hash"].to_pylist()


def test_a_finished_run_is_left_alone(folder: Path, tmp_path: Path) -> None:
    report = run(make_job(folder), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    engine = FakeEngine()
    again = run(make_job(folder), tmp_path / "run", engine)
    assert (again.root, again.counts, again.resumed) == (report.root, report.counts, 100)
    assert engine.asked == []
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_only_what_is_lost_is_made_again(folder: Path, tmp_path: Path) -> None:
    root = run(make_job(folder), tmp_path / "run").root
    (tmp_path / "run" / part_name(2)).unlink()
    path = tmp_path / "run" / part_name(4)
    path.write_bytes(path.read_bytes()[:-1])
    engine = FakeEngine(order=3)
    assert run(make_job(folder), tmp_path / "run", engine).root == root
    keys = {request.row_key for request in engine.asked}
    assert keys == {f"row-{row}" for row in (*range(16, 24), *range(32, 40))}
    assert verify_run(tmp_path / "run").ok


def test_a_row_edited_in_a_finished_run_is_made_again(folder: Path, tmp_path: Path) -> None:
    root = run(make_job(folder), tmp_path / "run").root
    path = tmp_path / "run" / part_name(1)
    table = pq.read_table(path)
    pq.write_table(table.set_column(7, table.schema.field(7), pa.array(["?"] * len(table))), path)
    assert run(make_job(folder), tmp_path / "run").root == root
    assert path.with_name(".part-00001.parquet.untrusted").exists()


def test_a_stray_part_file_is_never_trusted(folder: Path, tmp_path: Path) -> None:
    root = run(make_job(folder), tmp_path / "run").root
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    edit(tmp_path / "run" / "manifest.json", shards=manifest["shards"][1:], root=None)
    shutil.copy(tmp_path / "run" / part_name(5), tmp_path / "run" / part_name(0))
    engine = FakeEngine()
    assert run(make_job(folder), tmp_path / "run", engine).root == root
    assert {request.row_key for request in engine.asked} == {f"row-{row}" for row in range(8) if row != 3}
    assert verify_run(tmp_path / "run").ok


def test_an_engine_that_has_changed_is_caught_by_the_root(folder: Path, tmp_path: Path) -> None:
    root = run(make_job(folder), tmp_path / "run").root
    (tmp_path / "run" / part_name(2)).unlink()
    other = make_job(folder, lambda row: [1, 2, 3])  # answers otherwise under the same fingerprint
    with pytest.raises(VerifyError, match=f"finished with root {root}, and its rows now have"):
        run(other, tmp_path / "run")


def test_rows_per_shard_stays_what_it_was(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = run(make_job(folder), tmp_path / "run").root
    (tmp_path / "run" / part_name(0)).unlink()
    with caplog.at_level(logging.INFO):
        assert run(make_job(folder), tmp_path / "run", rows_per_shard=5).root == root
    assert "has 8 rows per shard, and keeps them" in caplog.text
    assert read_manifest(tmp_path / "run").plan.rows_per_shard == 8


def test_rows_per_shard_is_chosen_once(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        root = run(make_job(folder), tmp_path / "a", rows_per_shard=None).root
        (tmp_path / "a" / part_name(0)).unlink()
        assert run(make_job(folder), tmp_path / "a", rows_per_shard=None).root == root
        assert run(make_job(folder), tmp_path / "b", rows_per_shard=7).root == root
        (tmp_path / "b" / part_name(0)).unlink()
        assert run(make_job(folder), tmp_path / "b", rows_per_shard=None).root == root
    assert [read_manifest(tmp_path / name).plan.rows_per_shard for name in "ab"] == [64, 7]
    assert "and keeps them" not in caplog.text


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"seed": 1}, "seed is '0', not '1'"),
        ({"sampling": {"temperature": 0.5}}, r"sampling\.temperature is 1\.0, not 0\.5"),
        ({"sampling": {"stop": ["a"]}}, r"sampling\.stop is \[\], not \['a'\]"),
        ({"logprobs_mode": "processed"}, "logprobs_mode is 'raw', not 'processed'"),
    ],
)
def test_a_run_of_another_spec_is_refused(folder: Path, tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    run(make_job(folder), tmp_path / "run")
    with pytest.raises(RunError, match=message):
        run(make_job(folder, **sections), tmp_path / "run")
    assert verify_run(tmp_path / "run").ok


def test_a_run_without_a_row_gives_way_to_a_corrected_job(folder: Path, tmp_path: Path) -> None:
    class Broken(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            raise EngineError("cannot take this job")

    with pytest.raises(EngineError):
        run(make_job(folder, seed=1), tmp_path / "run", Broken(), rows_per_shard=5)
    assert run(make_job(folder), tmp_path / "run").root == run(make_job(folder), tmp_path / "other").root
    assert read_manifest(tmp_path / "run").plan.rows_per_shard == 8
    assert verify_run(tmp_path / "run").ok


@pytest.mark.parametrize("part", sorted(FINGERPRINT))
def test_a_run_of_another_engine_is_refused(folder: Path, tmp_path: Path, part: str) -> None:
    run(make_job(folder), tmp_path / "run")
    with pytest.raises(RunError, match=f"is a run of another job: {part} is .*, not other"):
        run(make_job(folder), tmp_path / "run", FakeEngine(fingerprint=FINGERPRINT | {part: "other"}))


def test_a_run_of_other_inputs_is_refused(folder: Path, tmp_path: Path) -> None:
    run(make_job(folder), tmp_path / "run")
    write_input(folder, 51, bad=[3])
    with pytest.raises(RunError, match=r"the input is another: in\.parquet"):
        run(make_job(folder), tmp_path / "run")


def test_a_run_with_other_templates_or_parameters_is_refused(folder: Path, tmp_path: Path) -> None:
    job = make_job(folder)
    run(job, tmp_path / "run")
    with pytest.raises(RunError, match="chat_template is None, not other"):
        run(replace(job, digests={"chat_template": "other"}), tmp_path / "run")
    with pytest.raises(RunError, match="params_hash is "):
        run(replace(job, params=replace(job.params, top_k=7)), tmp_path / "run")


def test_progress(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, int, int]] = []

    def on_progress(progress: Progress) -> None:
        seen.append((progress.done, progress.resumed, progress.errors, progress.samples))

    config = RunConfig(tmp_path / "run", rows_per_shard=8)
    report = run_local(make_job(folder), FakeEngine(), config, on_progress)
    assert [done for done, *_ in seen] == list(range(101))
    assert seen[-1] == (100, 0, 2, 100)
    (tmp_path / "run" / part_name(0)).unlink()
    seen.clear()
    assert run_local(make_job(folder), FakeEngine(), config, on_progress).root == report.root
    assert (seen[0], seen[-1]) == ((84, 84, 0, 100), (100, 84, 2, 100))


def test_what_the_engine_says_of_itself_is_recorded_with_what_it_makes(folder: Path, tmp_path: Path) -> None:
    root = run(make_job(folder), tmp_path / "run", FakeEngine(about={"threads": 3})).root
    assert read_manifest(tmp_path / "run").engine == {"threads": 3}
    assert run(make_job(folder), tmp_path / "run", FakeEngine(about={"threads": 4})).root == root
    assert read_manifest(tmp_path / "run").engine == {"threads": 3}  # the other made nothing
    (tmp_path / "run" / part_name(2)).unlink()
    assert run(make_job(folder), tmp_path / "run", FakeEngine(about={"threads": 5})).root == root
    assert read_manifest(tmp_path / "run").engine == {"threads": 5}


def test_the_run_config_is_recorded_and_seen_nowhere_else(folder: Path, tmp_path: Path) -> None:
    run(make_job(folder), tmp_path / "run", FakeEngine(max_num_seqs=3))
    manifest = read_manifest(tmp_path / "run")
    assert manifest.run_config["max_num_seqs"] == 3
    assert "out" not in manifest.run_config
    assert str(tmp_path) not in (tmp_path / "run" / "manifest.json").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_what_is_committed_stays(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    expected = run(make_job(folder), tmp_path / "whole").root
    before = signal.getsignal(number)

    def on_progress(progress: Progress) -> None:
        if progress.done == 40:
            try:
                signal.raise_signal(number)
            finally:
                assert signal.getsignal(number) == signal.SIG_DFL  # a second one would end the process

    with pytest.raises(Interrupted, match=rf"{number.name}; \d+ of 100 samples are kept"):
        run_local(make_job(folder), FakeEngine(), RunConfig(tmp_path / "run", rows_per_shard=8), on_progress)
    assert signal.getsignal(number) is before
    assert verify_run(tmp_path / "run").counts == {"unfinished": 1}
    assert len(read_rows(tmp_path / "run")) == read_manifest(tmp_path / "run").counts.rows > 0
    assert run(make_job(folder), tmp_path / "run").root == expected
