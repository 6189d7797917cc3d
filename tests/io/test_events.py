"""The log of a run: whole lines whatever happens, and never a reason for a run to be wrong."""

import json
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import EngineError, Interrupted, RunError, VerifyError
from batchgen.executor.base import Progress
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io.events import EventLog, read_events
from batchgen.io.manifest import part_name, read_manifest
from batchgen.verify.integrity import verify_run


def kinds(out: Path) -> list[str]:
    return [event["event"] for event in read_events(out)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    with EventLog.open(tmp_path) as log:
        log.write("commit", shard=3, slowest=[["é\u2028\n\udcb2", 0, 0.25, 7]])
    with EventLog.open(tmp_path) as log:
        log.write("finish", root="r")
    first, second = read_events(tmp_path)
    assert first == {**first, "event": "commit", "shard": 3, "slowest": [["é\u2028\n\udcb2", 0, 0.25, 7]]}
    assert (second["event"], second["root"]) == ("finish", "r")
    at = datetime.fromisoformat(first["at"])
    assert abs((at - before).total_seconds()) < 60
    assert len(first["at"]) == len("2026-01-31T12:34:56.789+00:00")
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 2


def test_no_log_is_no_event(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(RunError, match="cannot read: Is a directory"):
        read_events(tmp_path)


@pytest.mark.parametrize("torn", [b'{"at":"2026', b'{"event":"commit","shard":7', b"\xff\xfe", b"[" * 100_000, b"3"])
def test_a_torn_line_is_skipped_and_spoils_no_other(tmp_path: Path, torn: bytes) -> None:
    with EventLog.open(tmp_path) as log:
        log.write("start")
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(torn)
    with EventLog.open(tmp_path) as log:
        log.write("commit")
    assert kinds(tmp_path) == ["start", "commit"]


def test_a_log_cut_at_any_byte_can_be_gone_on_with(tmp_path: Path) -> None:
    with EventLog.open(tmp_path) as log:
        log.write("start", text="x")
        log.write("commit", shard=1)
    whole = (tmp_path / "events.jsonl").read_bytes()
    for size in range(len(whole) + 1):
        (tmp_path / "events.jsonl").write_bytes(whole[:size])
        with EventLog.open(tmp_path) as log:
            log.write("finish")
        ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
        lines = sum(size >= end for end in ends)  # a line whose newline alone is lost is whole
        assert kinds(tmp_path) == [*["start", "commit"][:lines], "finish"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt("SIGTERM"), "SIGTERM"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (EngineError("no memory", where="/a/b", hint="buy some"), "no memory"),
        (ZeroDivisionError("by zero"), "by zero"),
    ],
)
def test_an_exception_is_a_stop(tmp_path: Path, error: BaseException, reason: str) -> None:
    with pytest.raises(type(error)), EventLog.open(tmp_path):
        raise error
    [stop] = read_events(tmp_path)
    assert (stop["event"], stop["reason"]) == ("stop", reason)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write: No such file or directory") as caught:
        EventLog.open(tmp_path / "gone")
    assert caught.value.where == str(tmp_path / "gone" / "events.jsonl")


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """The error names the file; the `stop` that cannot be written hides nothing; what is there can be read."""
    program = """
import sys
from pathlib import Path
from batchgen.errors import RunError
from batchgen.io.events import EventLog
try:
    with EventLog.open(Path(sys.argv[1])) as log:
        for shard in range(100):
            log.write("commit", shard=shard)
except RunError as error:
    print(error)
"""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [sys.executable, "-P", "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=limit)
    assert f"{tmp_path}/events.jsonl: cannot write: File too large" in done.stdout
    assert os.path.getsize(tmp_path / "events.jsonl") == 1000
    events = read_events(tmp_path)
    assert [event["shard"] for event in events] == list(range(len(events)))
    assert len(events) > 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in", 50, bad=[3])


def test_the_log_of_a_run(folder: Path, tmp_path: Path) -> None:
    report = run(make_job(folder), tmp_path / "run", FakeEngine(about={"threads": 4}))
    events, manifest = read_events(tmp_path / "run"), read_manifest(tmp_path / "run")
    start, *middle, finish = events
    assert (start["event"], start["samples"], start["resumed"]) == ("start", 100, 0)
    assert (start["run_config"], start["engine"]) == (manifest.run_config, {"threads": 4})
    assert start["batchgen_version"] == manifest.batchgen_version
    assert start["host"].keys() == {"platform", "cpu", "cores", "python"}
    assert all(start["host"].values())
    assert (finish["event"], finish["root"], finish["samples"]) == ("finish", report.root, 100)
    assert 0 < finish["seconds"] <= round(report.seconds, 3)
    commits = {event["shard"]: event for event in middle if event["event"] == "commit"}
    for shard in manifest.shards:
        said, tally = commits[shard.index], shard.tally
        assert (said["samples"], said["errors"], said["replica"]) == (tally.rows, tally.error, "local")
        assert (said["prompt_tokens"], said["output_tokens"]) == (tally.prompt_tokens, tally.output_tokens)
        assert said["probes"] == shard.probes
        check_slowest(said["slowest"], {f"row-{row}" for row in range(shard.start, shard.stop)} - {"row-3"})
    probes = [event for event in middle if event["event"] == "probe"]
    assert len(probes) == manifest.probes == report.probes
    assert all(probe["exact"] for probe in probes)
    assert len(commits) + len(probes) == len(middle)
    seconds = [event["seconds"] for event in events if "seconds" in event]
    assert seconds == sorted(seconds)
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert str(tmp_path) not in (tmp_path / "run" / "events.jsonl").read_text()


def check_slowest(slowest: list[list[Any]], keys: set[str]) -> None:
    assert len(slowest) == 3
    assert {key for key, *_ in slowest} <= keys
    times = [seconds for _, _, seconds, _ in slowest]
    assert times == sorted(times, reverse=True)
    assert all(index in (0, 1) and 1 <= tokens <= 8 for _, index, _, tokens in slowest)


def test_the_time_of_a_sample_is_that_in_the_engine(folder: Path, tmp_path: Path) -> None:
    """One at a time, ten milliseconds each: waiting for the others does not count."""
    run(make_job(write_input(tmp_path / "few", 8)), tmp_path / "run", FakeEngine(max_num_seqs=1, seconds=0.01))
    slowest = [line for event in read_events(tmp_path / "run") for line in event.get("slowest", ())]
    assert all(0.01 <= seconds < 0.08 for _, _, seconds, _ in slowest)


def test_a_finished_run_adds_nothing(folder: Path, tmp_path: Path) -> None:
    run(make_job(folder), tmp_path / "run")
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    run(make_job(folder), tmp_path / "run")
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_a_run_that_was_stopped_tells_both_processes(folder: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 40:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        run_local(make_job(folder), FakeEngine(), RunConfig(tmp_path / "run", rows_per_shard=8), stop)
    kept = read_manifest(tmp_path / "run").counts.rows
    run(make_job(folder), tmp_path / "run")
    told = kinds(tmp_path / "run")
    assert (told[0], told.count("start"), told.count("stop"), told[-1]) == ("start", 2, 1, "finish")
    events = read_events(tmp_path / "run")
    assert events[told.index("stop")]["reason"] == "SIGINT"
    assert events[told.index("stop") + 1]["resumed"] == kept
    assert sorted(event["shard"] for event in events if event["event"] == "commit") == list(range(7))


def test_a_root_that_moved_is_a_stop(folder: Path, tmp_path: Path) -> None:
    run(make_job(folder), tmp_path / "run")
    (tmp_path / "run" / part_name(2)).unlink()
    with pytest.raises(VerifyError):
        run(make_job(folder, lambda row: [1, 2, 3]), tmp_path / "run")
    assert "its rows now have" in read_events(tmp_path / "run")[-1]["reason"]


@pytest.mark.parametrize("damage", [b"", b"\x00\xff" * 100, b'{"event": "start"', b"null\n[]\n"])
def test_nothing_hangs_on_the_log(folder: Path, tmp_path: Path, damage: bytes) -> None:
    root = run(make_job(folder), tmp_path / "run").root
    (tmp_path / "run" / "events.jsonl").write_bytes(damage)
    assert verify_run(tmp_path / "run").ok
    (tmp_path / "run" / part_name(1)).unlink()
    assert run(make_job(folder), tmp_path / "run").root == root
    assert kinds(tmp_path / "run")[-1] == "finish"
    (tmp_path / "run" / "events.jsonl").unlink()
    assert verify_run(tmp_path / "run").ok
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["root"] == root
