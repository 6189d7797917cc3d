"""Whole jobs with a real (tiny) model: shards, restarts, kills and n cannot be seen in the root or in any row.

Guards against what batch tools get wrong today: resume keyed by position, seeds that follow the worker or n, work lost
or doubled by a kill (batch-peers: vLLM #50440, UniRL #208, distilabel #648, SkyPilot's restart from scratch).
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.errors import Interrupted, RunError
from batchgen.executor.base import Progress
from batchgen.executor.local import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.job import run_job
from batchgen.verify.integrity import verify_run

ROWS = 23
JOB = """\
version: 1
name: tiny
model: {{path: model, max_model_len: 200}}
numerics: portable/1
inputs: [{{path: in.parquet, columns: {{prompt: prompt}}, passthrough: [label]}}]
row_key: {{column: id}}
sampling: {{n: {n}, temperature: 0.9, top_p: 0.95, max_tokens: 12, logprobs: 2}}
seed: 11
"""

Folder = Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = tmp_path_factory.mktemp("runs")
    write_tiny(folder / "model")
    prompts: list[str | None] = [f"Prompt number {i}: " + "word " * (i * 7 % 29) for i in range(ROWS)]
    prompts[5] = None
    write_parquet(folder / "in.parquet", id=[f"k{i}" for i in range(ROWS)], prompt=prompts, label=list(range(ROWS)))
    for n in (1, 2, 3):
        (folder / f"n{n}.yaml").write_text(JOB.format(n=n))
    return folder


def nothing(progress: Progress) -> None:
    pass


def make(
    folder: Folder, out: Path, job: str = "n2", on_progress: Callable[[Progress], None] = nothing, **how: Any
) -> JobReport:
    config = RunConfig(out, **({"threads": 1, "rows_per_shard": 5} | how))
    return run_job(folder / f"{job}.yaml", config, on_progress=on_progress)


@pytest.fixture(scope="module")
def root(folder: Folder) -> str:
    return make(folder, folder / "undisturbed").root


@pytest.mark.parametrize("rows_per_shard", [1, 2, 3, 7, 22, 23, 24, 1000])
def test_shards(folder: Folder, root: str, tmp_path: Path, rows_per_shard: int) -> None:
    assert make(folder, tmp_path / "run", rows_per_shard=rows_per_shard).root == root


@pytest.mark.parametrize(
    "how", [{"max_num_seqs": 1}, {"max_num_batched_tokens": 7}, {"threads": 3}, {"max_num_seqs": 3}]
)
def test_every_run_option(folder: Folder, root: str, tmp_path: Path, how: dict[str, Any]) -> None:
    assert make(folder, tmp_path / "run", **how).root == root


def test_small_kv_cache(folder: Folder, root: str, tmp_path: Path) -> None:
    blocks = 7 * 2 * 2 * 2 * 2 * 32 * 32  # of the tiny model: the least that holds 200 tokens
    assert make(folder, tmp_path / "run", kv_cache_bytes=blocks).root == root


def test_moved_input(folder: Folder, root: str, tmp_path: Path) -> None:
    """Another place on disk: paths are in no row."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("in.parquet", "n2.yaml"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    (elsewhere / "model").symlink_to(folder / "model")
    assert make(elsewhere, tmp_path / "run").root == root


def samples(out: Path) -> dict[tuple[str, int], str]:
    """row_hash by (row_key, sample_index)."""
    return {
        (row["row_key"], row["sample_index"]): row["row_hash"]
        for part in sorted((out / "rows").glob("part-*.parquet"))
        for row in pq.read_table(part, columns=["row_key", "sample_index", "row_hash"]).to_pylist()
    }


def test_n_extends(folder: Folder, tmp_path: Path) -> None:
    """n = 3 begins with the rows of n = 2, and that with the rows of n = 1."""
    made = {}
    for n in (1, 2, 3):
        make(folder, tmp_path / f"n{n}", job=f"n{n}")
        made[n] = samples(tmp_path / f"n{n}")
        assert len(made[n]) == ROWS * n
    assert made[1].items() <= made[2].items() <= made[3].items()
    # The counter-test: the samples of one row differ among themselves, so equality above says something.
    assert len(set(made[3].values())) == ROWS * 3


@pytest.mark.parametrize("stop_after", [1, 4, 17, 30, 45])
def test_stopped_and_resumed(folder: Folder, root: str, tmp_path: Path, stop_after: int) -> None:
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
    assert samples(tmp_path / "run") == samples(folder / "undisturbed")


def test_a_finished_run_is_left_alone(folder: Folder, root: str) -> None:
    out = folder / "undisturbed"
    before = {path: path.stat().st_mtime_ns for path in (out / "rows").iterdir()}
    report = make(folder, out)
    assert (report.root, report.resumed) == (root, ROWS * 2)
    assert before == {path: path.stat().st_mtime_ns for path in (out / "rows").iterdir()}


def test_another_job_in_the_folder_is_refused(folder: Folder, root: str) -> None:
    with pytest.raises(RunError, match="sampling"):
        make(folder, folder / "undisturbed", job="n3")


PROGRAM = """
import sys
from pathlib import Path
from batchgen.executor.run_config import RunConfig
from batchgen.job import run_job
print("begun", flush=True)
print(run_job(Path(sys.argv[1]), RunConfig(Path(sys.argv[2]), threads=1, rows_per_shard=2, max_num_seqs=6)).root)
"""


@pytest.mark.slow
def test_ten_kills(folder: Folder, root: str, tmp_path: Path) -> None:
    """SIGKILL at ten random moments; the eleventh process finishes the run."""
    command = [sys.executable, "-P", "-c", PROGRAM, str(folder / "n2.yaml"), str(tmp_path / "run")]
    moments = random.Random(3)
    for _ in range(10):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            time.sleep(moments.uniform(0.1, 1.5))
            child.kill()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == root
    assert verify_run(tmp_path / "run").ok


def test_counter_a_seed_by_position_is_caught(
    folder: Folder, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """seed + index, what peers do: n = 2 and n = 1 no longer agree, and the root moves."""
    import batchgen.executor.base as base

    monkeypatch.setattr(base, "sample_seed", lambda seed, key, index: seed + index)
    assert make(folder, tmp_path / "run").root != root
