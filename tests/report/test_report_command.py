"""batchgen report, as a user meets it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.report_runs import Page, ok, write_run

from batchgen.cli import cli
from batchgen.io.manifest import read_manifest
from batchgen.records import Completion, Request

KEYS = [f"row-{i}" for i in range(5)]


def plain(request: Request) -> Completion:
    return ok(request, [1, 2], request.row_key)


def batchgen(*args: object) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a", KEYS, plain)


def test_it_prints_the_name_of_the_page(run: Path) -> None:
    result = batchgen("report", run)
    assert (result.exit_code, result.stdout) == (0, f"{run}/report.html\n")
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert "Prompts are token ids, for the tokenizer was not at hand." in page.text
    assert "the tokenizer is not at hand" in result.stderr
    assert batchgen("verify", run).exit_code == 0


def test_json_holds_the_numbers(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "b", KEYS, plain, sampling={"temperature": 0.5})
    result = batchgen("report", run, "--json", "--against", other, "--out", tmp_path / "x.html")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["out"] == str(tmp_path / "x.html")
    assert (found["root"], found["tally"]["rows"]) == (read_manifest(run).root, 10)
    assert found["output_lengths"]["spread"]["median"] == 2
    assert [(each["kind"], each["rows"]) for each in found["diff"]["categories"]] == [("parameters", 10)]
    assert "against" in Page((tmp_path / "x.html").read_text(encoding="utf-8")).ids()


def test_what_is_no_run(run: Path, tmp_path: Path) -> None:
    missing = batchgen("report", tmp_path)
    assert missing.exit_code == 7
    assert "is not a run folder: it has no manifest.json" in missing.stderr
    assert batchgen("report", run, "--against", tmp_path).exit_code == 7
