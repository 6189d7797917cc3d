"""Runs in an object store: the same rows, one writer, and nothing there that is not whole."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support import child_run
from support.child_run import OBJECT_POINTS
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, run, write_input
from support.s3 import client, objects

from batchgen.errors import RunError
from batchgen.executor.base import Job
from batchgen.io.events import read_events
from batchgen.io.first_rows import first_rows
from batchgen.io.lease import LEASE, Lease
from batchgen.io.manifest import Manifest, part_name, read_manifest
from batchgen.io.object_store import ObjectStore
from batchgen.io.run_folder import RunFolder
from batchgen.object_path import ObjectPath, StoreError
from batchgen.verify.integrity import verify_run

ROWS = 16
PARTS = [part_name(index) for index in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("objects"), ROWS, bad=[7])


@pytest.fixture(scope="module")
def job(folder: Path) -> Job:
    return make_job(folder)


@pytest.fixture(scope="module")
def on_disk(folder: Path, job: Job) -> Path:
    run(job, folder / "run", rows_per_shard=4)
    return folder / "run"


@pytest.fixture
def out(bucket: ObjectPath) -> ObjectPath:
    return bucket / "runs" / "a"


def finish(job: Job, out: ObjectPath, engine: FakeEngine | None = None) -> str:
    """Make what is missing; the root."""
    root: str = run(job, out, engine, rows_per_shard=4).root
    assert verify_run(out).ok
    return root


def test_it_is_the_run_that_a_disk_has(job: Job, out: ObjectPath, on_disk: Path, s3: str) -> None:
    assert finish(job, out) == read_manifest(on_disk).root
    found = objects(out, s3)
    assert sorted(found) == sorted(["job.yaml", "manifest.json", "events/0001.jsonl", *PARTS])
    for name in (*PARTS, "job.yaml"):
        assert found[name] == (on_disk / name).read_bytes()
    there, here = json.loads(found["manifest.json"]), json.loads((on_disk / "manifest.json").read_bytes())
    assert {key for key in here if here[key] != there[key]} == set()
    kinds = [event["event"] for event in read_events(out) if event["event"] != "probe"]
    assert kinds == ["start", *["commit"] * 4, "finish"]
    assert len(read_events(out)) == len(read_events(on_disk))


def test_a_finished_run_is_left_alone(job: Job, out: ObjectPath, s3: str) -> None:
    root = finish(job, out)
    before = objects(out, s3)
    engine = FakeEngine()
    assert finish(job, out, engine) == root
    assert engine.asked == []
    assert objects(out, s3) == before


def test_it_may_move_between_disk_and_store(job: Job, out: ObjectPath, folder: Path, tmp_path: Path, s3: str) -> None:
    begin(job, out)
    for name, data in objects(out, s3).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert set(verify_run(tmp_path).counts) == {"unfinished"}
    root = run(job, tmp_path, rows_per_shard=4).root
    assert verify_run(tmp_path).ok
    for path in tmp_path.rglob("*.*"):
        (out / path.relative_to(tmp_path).as_posix()).write(path.read_bytes())
    engine = FakeEngine()
    assert finish(job, out, engine) == root
    assert engine.asked == []
    kinds = [event["event"] for event in read_events(out)]
    assert (kinds.count("start"), kinds[0], kinds[-1]) == (2, "start", "finish")


def begin(job: Job, out: ObjectPath) -> None:
    """Make a part of the run."""

    class Dying(FakeEngine):
        def generate(self, requests: Any) -> Any:
            for number, completion in enumerate(super().generate(requests)):
                if number == 18:
                    raise RuntimeError("died")
                yield completion

    with pytest.raises(RuntimeError, match="died"):
        run(job, out, Dying(), rows_per_shard=4)
    assert 0 < len(read_manifest(out).shards) < 4


def child(folder: Path, out: ObjectPath, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, child_run.__file__, str(folder), str(out), "--lease", "0.5", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_valid(out: ObjectPath, s3: str) -> int:
    """What the manifest names is there and holds; a part that it does not name is whole. The samples that are there."""
    assert set(verify_run(out).counts) <= {"unfinished", "stray"}
    assert {name.split("/")[0] for name in objects(out, s3)} <= {"job.yaml", "manifest.json", LEASE, "events", "rows"}
    return read_manifest(out).counts.rows


@pytest.mark.parametrize("point", OBJECT_POINTS)
def test_a_kill_around_each_request(
    folder: Path, job: Job, out: ObjectPath, on_disk: Path, s3: str, point: str
) -> None:
    count = 1 if "job" in point else 3
    process = child(folder, out, "--kill", f"{point}:{count}")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    if "job" in point:
        with pytest.raises(RunError, match="is not a run folder"):
            read_manifest(out)
    else:
        kept = {"before part": 2, "before manifest": 1, "after manifest": 2}[point]
        assert check_valid(out, s3) == kept * 4 * 2
    wait_for_lease(out)
    assert finish(job, out) == read_manifest(on_disk).root
    assert sorted(name for name in objects(out, s3) if name.endswith(".parquet")) == PARTS


def wait_for_lease(out: ObjectPath) -> None:
    """That a process which was killed has left."""
    time.sleep(0.6)
    assert (out / LEASE).exists()


@pytest.mark.slow
def test_kills_at_any_time_and_the_same_root(folder: Path, job: Job, out: ObjectPath, on_disk: Path, s3: str) -> None:
    chance = random.Random(7)
    for _ in range(3):
        process = child(folder, out, "--seconds", "0.02")
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.communicate()
        check_valid(out, s3)
        wait_for_lease(out)
    assert finish(job, out) == read_manifest(on_disk).root


def test_a_reader_in_the_middle_sees_a_valid_run(job: Job, out: ObjectPath) -> None:
    seen: list[int] = []

    class Watched(FakeEngine):
        def generate(self, requests: Any) -> Any:
            for number, completion in enumerate(super().generate(requests)):
                if number % 9 == 8:
                    verdict, manifest = verify_run(out), read_manifest(out)
                    assert set(verdict.counts) <= {"unfinished"}
                    assert len(first_rows(out, manifest, 3)) == min(3, manifest.counts.rows)
                    seen.append(verdict.rows)
                yield completion

    finish(job, out, Watched())
    assert seen == sorted(seen)
    assert len(set(seen)) > 1


def test_a_damaged_part_is_hidden_and_made_again(job: Job, out: ObjectPath, on_disk: Path, s3: str) -> None:
    root = finish(job, out)
    (out / PARTS[2]).write(b"PAR1 torn")
    (out / PARTS[3]).unlink()
    (out / part_name(9)).write(b"a stray")
    assert dict(verify_run(out).counts).keys() >= {"torn", "stray"}
    assert finish(job, out) == root
    hidden = {name: data for name, data in objects(out / "rows", s3).items() if name.startswith(".")}
    assert hidden == {".part-00002.parquet.untrusted": b"PAR1 torn", ".part-00009.parquet.untrusted": b"a stray"}


def test_a_store_that_fails_is_no_reason_to_make_rows_again(
    job: Job, out: ObjectPath, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, out)
    before = objects(out, s3)

    def refuse(path: ObjectPath, mode: str = "rb") -> Any:
        if path.name.startswith("part"):
            raise StoreError("access is denied", where=str(path))
        return opened(path, mode)

    opened = ObjectPath.open
    monkeypatch.setattr(ObjectPath, "open", refuse)
    with pytest.raises(StoreError, match="access is denied"):
        run(job, out)
    with pytest.raises(StoreError, match="access is denied"):
        verify_run(out)
    monkeypatch.undo()
    assert objects(out, s3) == before


def test_uploads_of_a_killed_writer_are_dropped(job: Job, out: ObjectPath, s3: str) -> None:
    boto, name = client("s3", s3), out.store.removeprefix("s3://")
    key = f"{out.key}/{PARTS[0]}"
    upload = boto.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
    boto.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=b"PAR1 half")
    finish(job, out)
    assert "Uploads" not in boto.list_multipart_uploads(Bucket=name)


def test_other_things_are_refused_and_kept(bucket: ObjectPath, s3: str) -> None:
    (bucket / "a/thesis.tex").write(b"x")
    (bucket / "b/rows/part-00000.parquet").write(b"x")
    with pytest.raises(RunError, match=r"is not a run and not empty: it holds thesis\.tex"):
        RunFolder.open(bucket / "a")
    with pytest.raises(RunError, match=r"it holds rows/part-00000\.parquet"):
        RunFolder.open(bucket / "b")
    with pytest.raises(RunError, match="is an object, and a run is a folder"):
        RunFolder.open(bucket / "a/thesis.tex")
    assert sorted(objects(bucket, s3)) == ["a/thesis.tex", "b/rows/part-00000.parquet"]
    RunFolder.open(bucket / "c").close()
    assert len(objects(bucket, s3)) == 2


def test_a_second_driver_is_refused(job: Job, out: ObjectPath) -> None:
    with RunFolder.open(out), pytest.raises(RunError, match="another process is writing to this run"):
        run(job, out)


def test_evidence_is_numbered(out: ObjectPath, s3: str) -> None:
    with RunFolder.open(out) as held:
        assert held.keep_evidence({"a": 1}) == out / "evidence/probe-001.json"
        assert held.keep_evidence({"a": 2}) == out / "evidence/probe-002.json"
        assert held.num_evidence == 2
    assert json.loads(objects(out, s3)["evidence/probe-002.json"]) == {"a": 2}


def stale(out: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A driver that was asleep while another took over and does not know it: its lease says yes to all."""
    held = RunFolder.open(out)
    monkeypatch.setattr(held._store._lease, "check", lambda: None)  # type: ignore[attr-defined]
    (out / LEASE).unlink()
    return held


def test_a_stale_manifest_is_refused_by_the_store(
    job: Job, out: ObjectPath, monkeypatch: pytest.MonkeyPatch, s3: str
) -> None:
    begin(job, out)
    sleeper = stale(out, monkeypatch)
    finish(job, out)
    before = objects(out, s3)
    with pytest.raises(RunError, match=r"another process is writing to this run\n  it has written .*manifest\.json"):
        sleeper.finish("0" * 64)
    with pytest.raises(RunError, match="another process is writing to this run"):
        sleeper.keep(set())
    assert objects(out, s3) == before
    sleeper.close()


def test_a_stale_part_is_refused_by_the_store(
    job: Job, out: ObjectPath, monkeypatch: pytest.MonkeyPatch, s3: str
) -> None:
    sleeper = stale(out, monkeypatch)  # there is no run yet
    finish(job, out)
    before = objects(out, s3)
    with pytest.raises(RunError, match=r"it has written .*part-00000\.parquet"):
        sleeper._store.add(PARTS[0], b"other rows")
    with pytest.raises(RunError, match=r"it has written .*manifest\.json"):
        sleeper._store.write_manifest(read_manifest(out).with_shards([]))
    assert objects(out, s3) == before
    sleeper.close()


def test_without_conditions_the_stale_driver_would_have_won(
    job: Job, out: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-test of the two above."""

    def write_over(path: ObjectPath, data: bytes, version: str) -> str:
        path.write(data)
        return "any"

    run(job, out, rows_per_shard=4)
    sleeper = stale(out, monkeypatch)
    monkeypatch.setattr(ObjectPath, "write_over", write_over)
    sleeper.finish("0" * 64)
    assert not verify_run(out).ok
    sleeper.close()


def test_a_writer_that_does_not_wait_for_the_lease_is_seen(
    job: Job, out: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault planted: parts are put before the lease is asked. The order of requests gives it away."""
    assert writes_before_lease(job, out / "right", monkeypatch) == []

    def open_late(path: ObjectPath) -> ObjectStore:
        (path / PARTS[0]).write_new(b"early")
        return ObjectStore(path, Lease.take(path))

    monkeypatch.setattr(ObjectStore, "open", open_late)
    assert writes_before_lease(job, out / "wrong", monkeypatch) == ["part-00000.parquet"]


def writes_before_lease(job: Job, out: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that a run puts first, up to its lease."""
    order: list[str] = []

    def noting(write: Callable[[ObjectPath, bytes], Any]) -> Callable[[ObjectPath, bytes], Any]:
        def put(path: ObjectPath, data: bytes) -> Any:
            order.append(path.name)
            return write(path, data)

        return put

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPath, "write_new", noting(ObjectPath.write_new))
        patch.setattr(ObjectPath, "write", noting(ObjectPath.write))
        with suppress(RunError):  # it finds its own early part
            run(job, out, rows_per_shard=4)
    return order[: order.index(LEASE)]


def test_a_manifest_is_read_with_its_version(job: Job, out: ObjectPath) -> None:
    """What is written over is what was parsed, also when another writes between the two."""
    run(job, out, rows_per_shard=4)
    with RunFolder.open(out) as held:
        other: Manifest = held.started.with_shards([])
        (out / "manifest.json").write(other.to_json().encode())
        with pytest.raises(RunError, match="another process is writing"):
            held.finish(str(held.started.root))
