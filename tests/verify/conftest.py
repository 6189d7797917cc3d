"""Runs of the tiny model for the tests that make rows again."""

import shutil
from pathlib import Path

import pytest
from support.tiny_runs import make_run, write_jobs


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two jobs and their runs, runs/features and runs/greedy. Read it, never change it."""
    folder = write_jobs(tmp_path_factory.mktemp("made"))
    for job in ("features", "greedy"):
        make_run(folder, folder / "runs" / job, job)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "copy")
