"""run_job: what is left behind, and when, by a job that cannot be run."""

import threading
from pathlib import Path
from typing import Any

import pytest
from support.jobs import write_parquet

from batchgen import job
from batchgen.errors import BatchgenError, InputError, SpecError
from batchgen.executor.run_config import RunConfig
from batchgen.job import run_job

JOB = """\
version: 1
name: tiny
model: {path: MODEL}
numerics: portable/1
inputs: [{path: in.parquet, columns: {messages: messages}, where: "id > 0"}]
row_key: {column: id}
sampling: {max_tokens: 2}
"""


@pytest.fixture
def path(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    write_parquet(tmp_path / "in.parquet", id=[1], messages=[[{"role": "user", "content": "a"}]])
    (tmp_path / "job.yaml").write_text(JOB.replace("MODEL", str(tiny_llama)))
    return tmp_path / "job.yaml"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


FAULTS = [("id > 0", "id > 1", InputError), ("max_tokens: 2", "max_tokens: 512", SpecError)]


@pytest.mark.parametrize(("old", "new", "kind"), FAULTS)
def test_a_job_that_cannot_start_leaves_no_folder(
    path: Path, tmp_path: Path, old: str, new: str, kind: type[BatchgenError]
) -> None:
    edit(path, old, new)
    with pytest.raises(kind):
        run_job(path, RunConfig(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_was_there_stays(path: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    edit(path, "id > 0", "id > 1")
    with pytest.raises(InputError):
        run_job(path, RunConfig(tmp_path / "run"))
    assert (tmp_path / "run").is_dir()


def test_an_error_does_not_wait_for_the_weights(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    def slow_weights(_: Path) -> Any:
        assert told.wait(60), "the error waited"

    monkeypatch.setattr(job, "open_weights", slow_weights)
    edit(path, "id > 0", "id > 1")
    with pytest.raises(InputError):
        run_job(path, RunConfig(tmp_path / "run"))
    told.set()


def test_a_fault_found_under_way_is_told_by_file_and_key(path: Path, tmp_path: Path) -> None:
    edit(path, "model: {", "model: {chat_template: \"{{ strftime_now('%Y') }}\", ")
    with pytest.raises(SpecError) as caught:
        run_job(path, RunConfig(tmp_path / "run", threads=1))
    assert caught.value.where == f"{path}: prompts.template_now"
    path.write_text(path.read_text() + "prompts: {template_now: '2026-01-01'}\n")
    assert run_job(path, RunConfig(tmp_path / "run", threads=1)).counts.error == 0
