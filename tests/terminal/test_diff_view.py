"""What a comparison of two runs looks like, and the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from support.bent_engine import BentEngine
from support.fake_engine import FINGERPRINT
from support.fake_jobs import make_job, run, write_input
from support.tiny_runs import edit_manifest

from batchgen.cli import cli
from batchgen.terminal import diff as view
from batchgen.verify.causes import Difference
from batchgen.verify.diff import Category, diff_runs


def batchgen(*args: object) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args], terminal_width=80)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a, same, bent, weights and hot. Read them, never change them."""
    folder = tmp_path_factory.mktemp("diff-view")
    write_input(folder, rows=40, bad=[5])
    asked: dict[str, Any] = {"logprobs": 0, "max_tokens": 20}
    bent: dict[str, Any] = {"row-7": "token", "row-8": "logprob", "row-9": "error", "row-10": "text"}
    job = make_job(folder, sampling=asked)
    run(job, folder / "a")
    run(job, folder / "same", rows_per_shard=3)
    run(job, folder / "bent", BentEngine(bends=bent))
    run(job, folder / "weights", BentEngine(bends=bent, fingerprint=FINGERPRINT | {"weights_digest": "v" * 64}))
    run(make_job(folder, sampling=asked | {"temperature": 0.5}), folder / "hot")
    return folder


def lines(result: Result) -> list[str]:
    return [line.rstrip() for line in result.stdout.splitlines()]


def test_identical(folder: Path) -> None:
    result = batchgen("diff", folder / "a", folder / "same")
    assert result.exit_code == 0
    assert lines(result)[-1] == "identical by their roots, 80 rows; `batchgen verify` checks the files"


def test_the_same_rows_in_another_order(folder: Path, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", rows=40, bad=[5])
    table = pq.read_table(source / "in.parquet")
    pq.write_table(table.take(pa.array(range(39, -1, -1))), source / "in.parquet")
    run(make_job(source, sampling={"logprobs": 0, "max_tokens": 20}), tmp_path / "turned")
    result = batchgen("diff", folder / "a", tmp_path / "turned")
    assert result.exit_code == 0
    last = "identical: 80 rows, every hash holds; they stand in another order, so the roots differ"
    assert lines(result)[-1] == last


def test_unexplained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = batchgen("diff", "a", "bent")
    assert result.exit_code == 8
    shown = " ".join(result.stdout.split())
    assert "diverged 2 2.5% unexplained: equal fingerprints and different bits" in shown
    assert "`batchgen explain a row-7 --against bent` finds where they part" in shown
    assert "error on one side 2 2.5% unexplained" in shown
    assert "non_finite_logits in B" in shown
    assert lines(result)[-1] == "different: 8 of 80 rows"


def test_a_cause_on_a_line(folder: Path) -> None:
    result = batchgen("diff", folder / "a", folder / "hot", "--limit", 0)
    assert "parameters differ  80  100.0%  cause: sampling.temperature: 1.0 in A, 0.5 in B" in lines(result)
    result = batchgen("diff", folder / "a", folder / "weights", "--limit", 0)
    assert f"weights_digest: {'w' * 40}…" in " ".join(result.stdout.split())


def test_json(folder: Path) -> None:
    result = batchgen("diff", folder / "a", folder / "weights", "--json", "--limit", 100)
    found = json.loads(result.stdout)
    assert (result.exit_code, found["identical"], found["by_roots"]) == (8, False, False)
    assert [(each["kind"], each["rows"]) for each in found["categories"]] == [
        ("identical", 72), ("logprobs", 2), ("diverged", 2), ("error", 2), ("columns", 2),
    ]  # fmt: skip
    cause = found["categories"][1]["cause"]
    assert cause == {
        "verdict": "cause",
        "differences": [{"key": "weights_digest", "a": "w" * 64, "b": "v" * 64}],
    }
    assert len(found["examples"]) == 8
    assert found["differences"] == cause["differences"]
    assert json.loads(batchgen("diff", folder / "a", folder / "same", "--json").stdout)["identical"] is True


def test_out(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "diff.parquet"
    assert batchgen("diff", folder / "a", folder / "bent", "--out", out).exit_code == 8
    assert pq.read_table(out).num_rows == 8
    (tmp_path / "mine").write_text("mine")
    result = batchgen("diff", folder / "a", folder / "bent", "--out", tmp_path / "mine")
    assert (result.exit_code, result.stdout) == (7, "")
    assert "is there already, and no earlier diff" in result.stderr


def test_what_is_no_run(folder: Path, tmp_path: Path) -> None:
    result = batchgen("diff", folder / "a", tmp_path)
    assert result.exit_code == 7
    assert "is not a run folder" in result.stderr
    result = batchgen("diff", tmp_path, folder / "a", "--json")
    assert json.loads(result.stdout)["error"]["exit_code"] == 7


def test_a_run_that_does_not_verify(folder: Path, tmp_path: Path) -> None:
    run(make_job(folder, sampling={"logprobs": 0}), tmp_path / "b")
    edit_manifest(tmp_path / "b", root="0" * 64)
    result = batchgen("diff", folder / "a", tmp_path / "b")
    assert result.exit_code == 8
    assert f"batchgen verify {tmp_path / 'b'}" in result.stderr


def test_an_example(folder: Path) -> None:
    diff = diff_runs(folder / "a", folder / "bent", examples=2)
    row = diff.examples[1]
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(view.example(row))
    shown = [line.rstrip() for line in capture.get().splitlines()]
    assert shown[0].startswith(f"row-7 · sample 0 · diverged at token {row['position']} ─")
    assert f"[{row['token_a']}]" in shown[1]
    assert f"[{row['token_b']}]" in shown[2]
    assert f"logprob {row['logprob_a']:.7f} " in shown[1]
    assert shown[3].startswith("text")


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        ({"position": 1, "first": 0, "a": [4, 5, 6]}, "4 [5] 6"),
        ({"position": 9, "first": 5, "a": [1, 2, 3, 4, 5]}, "… 1 2 3 4 [5]"),
        ({"position": 2, "first": 0, "a": [4, 5]}, "4 5 [end]"),
        ({"position": 0, "first": 0, "a": []}, "[end]"),
        ({"position": 0, "first": 0, "a": None}, "none"),
    ],
)
def test_tokens_around_a_place(around: dict[str, Any], expected: str) -> None:
    assert view.tokens(around, "a").plain == expected


def test_long_values_are_cut_where_they_part() -> None:
    a, b = "x" * 100 + "\none" + "y" * 100, "x" * 100 + "\ntwo" + "y" * 100
    left, right = view.excerpts(a, b, 20)
    assert (left, right) == ("…xxxx\\noneyyyyyyyyyyy…", "…xxxx\\ntwoyyyyyyyyyyy…")
    assert view.excerpts("same" * 30, "same" * 30, 8)[0] == "samesame…"
    assert view.excerpts("a", "b", 8) == ("a", "b")
    hashed = Difference("digest", "SHA-256 " + "0f" * 32, "1e" * 16)
    assert view.difference(hashed) == "digest: SHA-256 0f0f0f0f0f0f… in A, 1e1e1e1e1e1e… in B"
    assert view.difference(Difference("k", None, {"a": [1]})) == 'k: none in A, {"a": [1]} in B'


def test_a_share_is_never_rounded_to_none_or_all(folder: Path) -> None:
    diff = diff_runs(folder / "a", folder / "bent")
    category: Category = diff.categories[0]
    assert view.share(replace(category, rows=999_999), 1_000_000) == "99.9%"
    assert view.share(replace(category, rows=1), 1_000_000) == "<0.1%"
    assert view.share(replace(category, rows=7), 7) == "100.0%"
