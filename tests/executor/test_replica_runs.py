"""Whole jobs over ranks: a rank that is killed, a Ctrl-C, and another number of ranks that goes on and checks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.tiny_jobs import ROWS, make, write_tiny_jobs
from support.tiny_models import write_tiny

from batchgen.io.manifest import read_manifest
from batchgen.verify.integrity import verify_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny jobs, of a mixture of experts."""
    there = write_tiny_jobs(tmp_path_factory.mktemp("runs"))
    shutil.rmtree(there / "model")
    write_tiny(there / "model", "qwen3_moe")
    return there


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    return make(folder, folder / "whole").root


def started(folder: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "batchgen", "run", str(folder / "job.yaml"), "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)


def ranks_of(pid: int) -> list[int]:
    """The processes that it has started to be ranks."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"sys.path[:]" in Path(f"/proc/{child}/cmdline").read_bytes()]


def once_it_runs(process: subprocess.Popen[str], out: Path) -> list[int]:
    """The ranks, when the run has its log, which is when all of them have started."""
    limit = time.monotonic() + 60
    while not (out / "events.jsonl").exists() and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.01)
    return ranks_of(process.pid)


@pytest.fixture
def stopped(folder: Path, tmp_path: Path) -> Any:
    def stop(number: signal.Signals, *, the_driver: bool) -> tuple[Path, int, str]:
        process = started(folder, tmp_path / "run", "--expert-parallel-size", "2", "--max-num-seqs", "1")
        ranks = once_it_runs(process, tmp_path / "run")
        assert len(ranks) == 2
        if the_driver:
            os.killpg(process.pid, number)
        else:
            os.kill(ranks[1], number)
        begun = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - begun < 15
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
        assert set(verify_run(tmp_path / "run").counts) <= {"unfinished"}
        return tmp_path / "run", process.returncode, errors

    return stop


def test_a_rank_that_is_killed(folder: Path, root: str, stopped: Any) -> None:
    """The run says which and how, keeps what it has, and three ranks go on."""
    out, status, errors = stopped(signal.SIGKILL, the_driver=False)
    assert status == 9, errors
    assert "rank 1 of 2 was killed by SIGKILL" in errors
    assert "Traceback" not in errors
    assert not read_manifest(out).finished
    assert make(folder, out, expert_parallel_size=3).root == root


def test_a_ctrl_c(folder: Path, root: str, stopped: Any) -> None:
    out, status, errors = stopped(signal.SIGINT, the_driver=True)
    assert status == 130, errors
    assert "stopped by SIGINT" in errors
    assert make(folder, out).root == root


def test_any_number_checks_any_run(folder: Path, root: str) -> None:
    """Two ranks make every row of one rank's run again."""
    options = ["--all", "--job-dir", str(folder), "--expert-parallel-size", "2", "--json"]
    command = [sys.executable, "-P", "-m", "batchgen", "replay", str(folder / "whole"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["exact"], found["bad"], found["prompt_errors"]) == (2 * ROWS - 2, 0, 2)
    assert found["config"]["expert_parallel_size"] == found["engine"]["ranks"] == 2
    assert found["root"] == root


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--expert-parallel-size", "9"), "9 is not in the range 1<=x<=8"),
        (("--redundant-experts", "1"), "redundant_experts: is 1, and there is one rank"),
        (("--expert-parallel-size", "2", "--redundant-experts", "13"), "13 redundant experts of 12 cannot be placed"),
    ],
)
def test_what_cannot_be(folder: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    process = started(folder, tmp_path / "run", *options)
    _, errors = process.communicate(timeout=60)
    assert message in errors
    assert process.returncode in (2, 9)
    assert not (tmp_path / "run").exists(), "nothing is left behind"
