"""Stop a run at any instant, go on, and get the rows of a run that was never stopped."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest
from support import child_run
from support.child_run import POINTS
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.errors import RunError
from batchgen.io.manifest import read_manifest
from batchgen.verify.integrity import verify_run

ROWS = 60
SAMPLES = 2 * ROWS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("kills"), ROWS, bad=[7])


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    """Of a run that nobody stopped."""
    return run(make_job(folder), folder / "whole").root


def child(folder: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, child_run.__file__, str(folder), str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_after(process: subprocess.Popen[str], seconds: float, number: signal.Signals) -> tuple[int, str]:
    """Send a signal some time after the first sample; (exit status, stderr)."""
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def check_valid(out: Path) -> int:
    """The folder is what its manifest says, and other tools can read it; the number of samples in it."""
    assert set(verify_run(out).counts) <= {"unfinished", "stray"}
    rows = read_manifest(out).counts.rows
    if not list((out / "rows").glob("*.parquet")):
        return rows
    [(count, distinct)] = duckdb.sql(
        f"SELECT count(*), count(DISTINCT (row_key, sample_index)) FROM '{out}/rows/*.parquet'"
    ).fetchall()
    assert count == distinct >= rows  # a file that was renamed and not yet named is whole, too
    assert ds.dataset(out / "rows", format="parquet", exclude_invalid_files=False).count_rows() == count
    return rows


def check_finished(folder: Path, out: Path, root: str) -> None:
    assert run(make_job(folder), out).root == root
    assert verify_run(out).ok
    assert len(read_rows(out)) == SAMPLES
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point_of_a_commit(folder: Path, tmp_path: Path, root: str, point: str) -> None:
    process = child(folder, tmp_path / "run", "--kill", f"{point}:4")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    committed = check_valid(tmp_path / "run")
    assert committed == (8 * 2 if "manifest" in point else 8 * 3)  # the first manifest is that of the empty run
    check_finished(folder, tmp_path / "run", root)


@pytest.mark.parametrize("point", ["open manifest", "rename manifest"])
def test_a_kill_before_there_is_a_run(folder: Path, tmp_path: Path, root: str, point: str) -> None:
    process = child(folder, tmp_path / "run", "--kill", f"{point}:1")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(RunError, match="is not a run folder"):
        read_manifest(tmp_path / "run")
    check_finished(folder, tmp_path / "run", root)


@pytest.mark.slow
def test_ten_kills_and_the_same_root(folder: Path, tmp_path: Path, root: str) -> None:
    chance = random.Random(4)
    kept = [0]
    for turn in range(10):
        if turn % 2:
            process = child(folder, tmp_path / "run", "--kill", f"{chance.choice(POINTS)}:{chance.randint(1, 3)}")
            process.communicate(timeout=60)
            status = process.returncode
        else:
            process = child(folder, tmp_path / "run", "--seconds", "0.002")
            status, _ = stop_after(process, chance.uniform(0, 0.1), signal.SIGKILL)
        assert status == -signal.SIGKILL
        kept.append(check_valid(tmp_path / "run"))
    assert kept == sorted(kept)
    assert 0 < kept[-1] < SAMPLES
    check_finished(folder, tmp_path / "run", root)


@pytest.fixture
def pauses() -> Iterator[float]:
    return iter(random.Random(9).uniform(0, 0.15) for _ in range(9))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_is_asked_for(
    folder: Path, tmp_path: Path, root: str, number: signal.Signals, pauses: Iterator[float]
) -> None:
    for _ in range(2):
        process = child(folder, tmp_path / "run", "--seconds", "0.004")
        status, errors = stop_after(process, next(pauses), number)
        assert status == 130, errors
        assert f"stopped by {number.name}" in errors
        assert "Traceback" not in errors
        assert "stray" not in verify_run(tmp_path / "run").counts
        check_valid(tmp_path / "run")
    check_finished(folder, tmp_path / "run", root)
