"""The job of the small mixture of experts: one model on every machine, one root on every number of ranks."""

import hashlib
import shutil
from pathlib import Path

import pytest
from support.example_scripts import EXAMPLES, load

from batchgen.errors import Interrupted
from batchgen.executor.base import Progress
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.job import run_job

ROOT = "af3fb46592c6730326ec505b601d76b5aad1b28b02518852cc0a26163073619f"
WEIGHTS = "bc02cca9c5aa53546031303771f05585203aa7ac610082f433b9f1da21bd74fe"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """jobs/ and examples/ as in a clone in which the model was made."""
    there = tmp_path_factory.mktemp("clone")
    shutil.copytree(EXAMPLES.parent / "jobs", there / "jobs")
    shutil.copytree(EXAMPLES / "data", there / "examples" / "data")
    load("make_tiny_moe").main(there / "examples" / "tiny-moe")
    return there


def run(folder: Path, out: str, **how: int) -> JobReport:
    return run_job(folder / "jobs" / "moe.yaml", RunConfig(folder / out, **how))  # type: ignore[arg-type]


def test_the_model_is_the_same_everywhere(folder: Path) -> None:
    weights = (folder / "examples" / "tiny-moe" / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS


def test_one_rank(folder: Path) -> None:
    report = run(folder, "one")
    assert (report.root, report.counts.rows, report.counts.error) == (ROOT, 32, 0)


@pytest.mark.slow
def test_eight_ranks(folder: Path) -> None:
    """Experts held twice, and moving."""
    report = run(folder, "eight", expert_parallel_size=8, redundant_experts=8, eplb_interval=5)
    assert report.root == ROOT
    assert report.probes >= 2


def test_three_ranks_go_on_where_one_stopped(folder: Path) -> None:
    """A run that one rank began is finished by others, which hold what was not theirs."""
    job = folder / "jobs" / "moe.yaml"
    short = folder / "jobs" / "short.yaml"
    short.write_text(job.read_text(encoding="utf-8").replace("limit: 16", "limit: 8"), encoding="utf-8")
    whole = run_job(short, RunConfig(folder / "whole", rows_per_shard=2)).root

    def stop(progress: Progress) -> None:
        if progress.done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_job(short, RunConfig(folder / "parts", rows_per_shard=2, max_num_seqs=2), on_progress=stop)
    report = run_job(short, RunConfig(folder / "parts", expert_parallel_size=3, max_num_seqs=2))
    assert 0 < report.resumed < 16
    assert report.root == whole
