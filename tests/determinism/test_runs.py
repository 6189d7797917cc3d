"""Whole jobs with a real (tiny) model: shards, restarts, kills and n cannot be seen in the root or in any row.

Guards against what batch tools get wrong today: resume keyed by position, seeds that follow the worker or n, work lost
or doubled by a kill (batch-peers: vLLM #50440, UniRL #208, distilabel #648, SkyPilot's restart from scratch).
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.tiny_jobs import ROWS, make, samples_of, write_tiny_jobs

from batchgen.errors import Interrupted, RunError
from batchgen.executor.base import Progress
from batchgen.verify.integrity import verify_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_jobs(tmp_path_factory.mktemp("runs"), (1, 2, 3, 4, 8))


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    return make(folder, folder / "undisturbed").root


@pytest.mark.parametrize("rows_per_shard", [1, 2, 3, 7, 22, 23, 24, 1000])
def test_shards(folder: Path, root: str, tmp_path: Path, rows_per_shard: int) -> None:
    assert make(folder, tmp_path / "run", rows_per_shard=rows_per_shard).root == root


@pytest.mark.parametrize(
    "how",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 7},
        {"threads": 3},
        {"max_num_seqs": 3},
        {"prefix_cache": False},
        {"probe": 0},
        {"probe": 1, "max_num_seqs": 5},
        {"rows_per_shard": None},
    ],
)
def test_every_run_option(folder: Path, root: str, tmp_path: Path, how: dict[str, Any]) -> None:
    assert make(folder, tmp_path / "run", **how).root == root


def test_small_kv_cache(folder: Path, root: str, tmp_path: Path) -> None:
    blocks = 7 * 2 * 2 * 2 * 2 * 32 * 32  # of the tiny model: the least that holds 200 tokens
    assert make(folder, tmp_path / "run", kv_cache_bytes=blocks).root == root


def test_moved_input(folder: Path, root: str, tmp_path: Path) -> None:
    """Another place on disk: paths are in no row."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("in.parquet", "job.yaml"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    (elsewhere / "model").symlink_to(folder / "model")
    assert make(elsewhere, tmp_path / "run").root == root


def test_n_extends(folder: Path, tmp_path: Path) -> None:
    """n = 8 begins with the rows of n = 4, that with the rows of n = 3, and so on."""
    made = {}
    for n in (1, 2, 3, 4, 8):
        make(folder, tmp_path / f"n{n}", job=f"n{n}")
        made[n] = samples_of(tmp_path / f"n{n}")
        assert len(made[n]) == ROWS * n
    assert made[1].items() <= made[2].items() <= made[3].items() <= made[4].items() <= made[8].items()
    # The counter-test: the samples of one row differ among themselves, so equality above says something.
    assert len(set(made[8].values())) == ROWS * 8


@pytest.mark.parametrize("stop_after", [1, 4, 17, 30, 45])
def test_stopped_and_resumed(folder: Path, root: str, tmp_path: Path, stop_after: int) -> None:
    """SIGINT once so many samples are done; then on with other options."""

    def stop(progress: Progress) -> None:
        if progress.done == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        make(folder, tmp_path / "run", on_progress=stop)
    report = make(folder, tmp_path / "run", max_num_seqs=3, max_num_batched_tokens=33, threads=2)
    assert report.root == root
    assert report.resumed < ROWS * 2
    assert verify_run(tmp_path / "run").ok
    assert samples_of(tmp_path / "run") == samples_of(folder / "undisturbed")


def test_a_finished_run_is_left_alone(folder: Path, root: str) -> None:
    out = folder / "undisturbed"
    before = {path: path.stat().st_mtime_ns for path in (out / "rows").iterdir()}
    report = make(folder, out)
    assert (report.root, report.resumed) == (root, ROWS * 2)
    assert before == {path: path.stat().st_mtime_ns for path in (out / "rows").iterdir()}


def test_another_job_in_the_folder_is_refused(folder: Path, root: str) -> None:
    with pytest.raises(RunError, match="sampling"):
        make(folder, folder / "undisturbed", job="n3")


def test_counter_a_seed_by_position_is_caught(
    folder: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """seed + index, what peers do: n = 2 and n = 1 no longer agree, and the root moves."""
    import batchgen.executor.base as base

    monkeypatch.setattr(base, "sample_seed", lambda seed, key, index: seed + index)
    assert make(folder, tmp_path / "run").root != root
