"""The state of a run as people see it: whole, as a line, and again and again."""

import io
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from support.children import child_of
from support.fake_jobs import make_job, run, write_input

from batchgen.cli import cli
from batchgen.status import ReplicaStatus, Status, read_status
from batchgen.terminal import status as view_module
from batchgen.terminal.status import follow, line, view, watch_status

PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, run
run(make_job(Path(sys.argv[2])), Path(sys.argv[2]) / "run", FakeEngine(seconds=0.02))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("status")
    run(make_job(write_input(folder, 40)), folder / "run")
    return folder / "run"


@pytest.fixture
def running(finished: Path) -> Status:
    found = replace(read_status(finished), state="running", root=None, done=48, shards_done=3, errors=3)
    return replace(found, tokens_per_second=812.4, samples_per_second=0.1, seconds_left=310.0, since_commit=4.2)


def shown(status: Status, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(view(Path("runs/x"), status))
    return out.getvalue()


def replicas(count: int) -> tuple[ReplicaStatus, ...]:
    return tuple(
        ReplicaStatus(f"node-{i:04}", 2, 20, 0, 1000, float(100 + i), since_commit=float(i)) for i in range(count)
    )


def test_a_line(running: Status) -> None:
    assert line(running) == "running: 48/80 samples, 3 errors, 812 tok/s, 5:10 left, last commit 0:04 ago"
    many = replace(running, errors=0, replicas=replicas(3), state="stopped", reason="SIGTERM")
    assert line(many) == "stopped: 48/80 samples, 3 replicas, 812 tok/s, last commit 0:04 ago, SIGTERM"
    assert line(replace(running, state="finished")).startswith("finished: 48/80 samples, 3 errors, 812 tok/s")


def test_all_of_it(running: Status) -> None:
    text = shown(running)
    for part in ("runs/x: running", "60%", "48 of 80, 3 errors", "3 of 5", "812 tok/s", "about 5:10", "0:04 ago"):
        assert part in text
    assert "replica" not in text


def test_what_is_not_known_is_not_shown(running: Status) -> None:
    new = replace(running, done=0, tokens_per_second=None, samples_per_second=None, seconds_left=None)
    text = shown(replace(new, seconds=None, since_commit=None, probes=0))
    assert "none yet" in text
    assert not any(name in text for name in ("rate", "left", "at work", "last commit", "root", "None"))


def test_few_replicas_are_all_there(running: Status) -> None:
    text = shown(replace(running, replicas=replicas(16)))
    assert all(f"node-{i:04}" in text for i in range(16))
    assert "more" not in text


def test_a_replica_that_is_new_and_one_that_is_lost(running: Status) -> None:
    new, lost = replicas(2)
    new, lost = (
        replace(new, shards=0, samples=0, since_commit=None, tokens_per_second=None),
        replace(lost, is_gone=True),
    )
    text = shown(replace(running, replicas=(new, lost), twins=3))
    lines = [line.split() for line in text.splitlines() if line.startswith("node")]
    assert lines == [["node-0000", "0", "0", "none", "yet"], ["node-0001", "2", "20", "101", "lost"]]
    assert "3 bit-exact" in text
    assert "replica" not in line(replace(running, replicas=(new, lost)))


def test_of_many_the_slow_and_the_silent_are_there(running: Status) -> None:
    text = shown(replace(running, replicas=replicas(1000)))
    names = [f"node-{i:04}" for i in range(1000)]
    assert [name for name in names if name in text] == names[:8] + names[-8:]
    assert "and 984 more" in text
    assert f"{sum(100 + i for i in range(8, 992)):,}" in text


def test_troubles_are_told_and_cannot_paint(running: Status) -> None:
    text = shown(replace(running, troubles=tuple(f"r{i}: \x1b[31mdied" for i in range(7)), failed_probes=2))
    assert "r6: ␛[31mdied" in text
    assert "r1" not in text
    assert "and 2 more before" in text
    assert "2 that differed: see evidence/" in text


def test_a_quiet_run_says_what_is_not_known(running: Status) -> None:
    assert "no process here is at work on it" in shown(replace(running, state="quiet"))


def test_nothing_runs_over_a_narrow_terminal(running: Status) -> None:
    text = shown(replace(running, replicas=replicas(100)), width=62)
    assert max(map(len, text.splitlines())) <= 62


def test_on_a_terminal_it_is_drawn_in_place(finished: Path) -> None:
    out = io.StringIO()
    watch_status(finished, Console(file=out, force_terminal=True, width=80))
    assert "finished" in out.getvalue()
    assert "\x1b[" in out.getvalue()


def test_elsewhere_it_is_a_line(finished: Path) -> None:
    out = io.StringIO()
    watch_status(finished, Console(file=out))
    assert out.getvalue().startswith("finished: 80/80 samples")
    assert out.getvalue().count("\n") == 1


def test_it_is_seen_from_another_process_until_it_is_finished(tmp_path: Path) -> None:
    write_input(tmp_path, 60)
    program = [sys.executable, "-P", "-c", PROGRAM, str(Path(__file__).parents[1]), str(tmp_path)]
    with child_of(program) as child:
        while not (tmp_path / "run/manifest.json").exists():
            assert child.poll() is None
            time.sleep(0.05)
        seen: list[Status] = []
        follow(tmp_path / "run", 0.1, seen.append)
    assert child.returncode == 0
    assert {status.state for status in seen[:-1]} <= {"running", "quiet"}
    assert seen[0].state == "running"
    assert len({status.done for status in seen}) > 2
    assert [status.done for status in seen] == sorted(status.done for status in seen)
    assert (seen[-1].state, seen[-1].done) == ("finished", 120)


def test_a_killed_run_is_quiet(tmp_path: Path) -> None:
    write_input(tmp_path, 60)
    program = [sys.executable, "-P", "-c", PROGRAM, str(Path(__file__).parents[1]), str(tmp_path)]
    with child_of(program) as child:
        while not (tmp_path / "run/manifest.json").exists() or not read_status(tmp_path / "run").done:
            time.sleep(0.05)
        os.kill(child.pid, signal.SIGKILL)
    assert read_status(tmp_path / "run").state == "quiet"


def test_the_command(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CliRunner().invoke(cli, ["status", str(finished), "--json"])
    whole = json.loads(found.stdout)
    assert (found.exit_code, whole["state"], whole["replicas"][0]["name"]) == (0, "finished", "local")
    watched = CliRunner().invoke(cli, ["status", str(finished), "--json", "--watch"])
    assert json.loads(watched.stdout)["root"] == whole["root"]
    assert CliRunner().invoke(cli, ["status", str(finished)]).stdout.startswith(f"{finished}: finished\n")
    none = CliRunner().invoke(cli, ["status", str(finished.parent)])
    assert (none.exit_code, "is not a run folder" in none.stderr) == (7, True)


def test_to_leave_it_is_no_error(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(run: Path) -> Status:
        raise KeyboardInterrupt

    monkeypatch.setattr(view_module, "read_status", leave)
    found = CliRunner().invoke(cli, ["status", str(finished), "--watch"])
    assert (found.exit_code, found.stderr) == (130, "")
