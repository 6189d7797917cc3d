"""Evaluations of a real run: items, digits that hang on nothing, flips between two runs, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.cli import cli
from batchgen.engine.scoring import score
from batchgen.evals.flips import flips_between
from batchgen.evals.items import read_items
from batchgen.rollout import Engine

ROWS = 9
CHOICES = [[" the", " fox", " x"], [" over", " again"], [" said it", " done", "\u00e9t\u00e9", " :"]]
JOB = """\
version: 1
name: scored
model: {path: model, max_model_len: 96}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}, passthrough: [answer, choices, right]}]
row_key: {column: id}
sampling: {n: 2, temperature: TEMPERATURE, max_tokens: 6, ignore_eos: true}
seed: 5
evals:
  - {name: letter, scorer: regex, pattern: "[a-m]", pass_at: [1, 2]}
  - {name: own, scorer: python, function: "own.py:own"}
  - {name: best, scorer: choice, choices: choices, answer: right}
  - {name: best-by-byte, scorer: choice, choices: choices, answer: right, per: byte}
"""
OWN = """
def own(text, row):
    if row["answer"] == "a4":
        raise ValueError("not this one")
    return len(text) % 2 == 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs that differ in their temperature; row k3 has no prompt, and k6 a right choice that is none."""
    folder = tmp_path_factory.mktemp("evals")
    write_tiny(folder / "model")
    prompts = [None if i == 3 else f"Prompt {i}: " + "word " * i for i in range(ROWS)]
    write_parquet(
        folder / "in.parquet",
        id=[f"k{i}" for i in range(ROWS)],
        prompt=prompts,
        answer=[f"a{i}" for i in range(ROWS)],
        choices=[CHOICES[i % 3] for i in range(ROWS)],
        right=[9 if i == 6 else i % 2 for i in range(ROWS)],
    )
    (folder / "own.py").write_text(OWN)
    for name, temperature in (("job", "0.8"), ("other", "1.5")):
        (folder / f"{name}.yaml").write_text(JOB.replace("TEMPERATURE", temperature))
        assert told("run", folder / f"{name}.yaml", "--out", folder / name, "--threads", 1).exit_code == 3
    return folder


def told(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def evaluations(*arguments: object) -> dict[str, Any]:
    """What `batchgen eval` says, by name."""
    result = told("eval", *arguments, "--threads", 1, "--json")
    assert result.exit_code == 3, result.output
    return {each["name"]: each for each in json.loads(result.stdout)["evaluations"]}


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return evaluations(folder / "job")


def test_items(folder: Path, found: dict[str, Any]) -> None:
    assert list(found) == ["letter", "own", "best", "best-by-byte"]
    rows = pq.read_table(folder / "job" / "rows").to_pylist()
    items = read_items(folder / "job", "letter")
    names = [(row["row_key"], row["sample_index"], row["row_hash"]) for row in rows]
    assert [(item.row_key, item.sample_index, item.row_hash) for item in items] == names
    for item, row in zip(items, rows, strict=True):
        right = None if row["text"] is None else float(any(letter in "abcdefghijklm" for letter in row["text"]))
        assert (item.score, item.value) == (right, row["text"])
        assert item.error == row["error_code"]
    assert found["letter"]["summary"]["failed"] == 2
    assert found["letter"]["summary"]["score"] == sum(item.score or 0 for item in items) / len(items)


def test_a_scorer_that_raises_on_one_row(folder: Path, found: dict[str, Any]) -> None:
    errors = {item.row_key: item.error for item in read_items(folder / "job", "own") if item.error}
    assert errors == {"k3": "prompt_null", "k4": "ValueError: not this one"}
    assert found["own"]["summary"]["failed"] == 4


def test_choices_have_the_bits_of_the_engine(folder: Path, found: dict[str, Any]) -> None:
    rows = [row for row in pq.read_table(folder / "job" / "rows").to_pylist() if row["sample_index"] == 0]
    items, by_byte = read_items(folder / "job", "best"), read_items(folder / "job", "best-by-byte")
    with Engine.open(folder / "model", threads=1, max_num_seqs=2) as engine:
        encode = engine.model.tokenizer.encode_continuation
        for row, item, other in zip(rows, items, by_byte, strict=True):
            if row["row_key"] in ("k3", "k6"):
                assert item.score is None
                assert item.error
                continue
            pairs = [(row["prompt_token_ids"], encode(text)) for text in row["choices"]]
            totals = [each.total for each in score(engine._engine, pairs)]
            assert item.logprobs == other.logprobs == tuple(totals)
            assert item.choice == totals.index(max(totals))
            assert item.score == (item.choice == row["right"])
            weighed = [total / len(text.encode()) for total, text in zip(totals, row["choices"], strict=True)]
            assert other.choice == weighed.index(max(weighed))
    assert found["best"]["summary"]["failed"] == 2
    assert {item.choice for item in items} > {0}


def test_the_same_digits_however_it_is_run(folder: Path, found: dict[str, Any]) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "job" / "evals").iterdir()}
    assert evaluations(folder / "job", "--max-num-seqs", 1) == found
    assert {path.name: path.read_bytes() for path in (folder / "job" / "evals").iterdir()} == before


def test_the_run_stays_a_run(folder: Path, found: dict[str, Any]) -> None:
    assert told("verify", folder / "job").exit_code == 0
    again = told("eval", folder / "job.yaml", "--out", folder / "job", "--only", "letter", "--threads", 1)
    assert again.exit_code == 3
    assert "letter" in again.stdout
    assert "2 samples without a score" in again.stdout


def test_flips(folder: Path, found: dict[str, Any]) -> None:
    evaluations(folder / "other")
    all_flips = {each.name: each for each in flips_between(folder / "job", folder / "other")}
    assert set(all_flips) == set(found)
    flips = all_flips["letter"]
    assert flips.flips
    assert flips.better + flips.worse == len(flips.flips)
    assert (flips.compared, flips.alone) == (2 * ROWS, 0)
    rows = [
        {(row["row_key"], row["sample_index"]): row for row in pq.read_table(folder / run / "rows").to_pylist()}
        for run in ("job", "other")
    ]
    for flip in flips.flips:
        a, b = (run[flip.row_key, flip.sample_index]["token_ids"] for run in rows)
        assert flip.token is not None
        assert a[: flip.token] == b[: flip.token]
        assert a[flip.token] != b[flip.token]
    assert not all_flips["best"].flips, "the temperature does not change what the model finds likely"
    shown = told("eval", folder / "job", "--against", folder / "other", "--only", "letter")
    assert f"letter: {flips.better} better in B, {flips.worse} worse, of 18" in shown.stdout
    assert "they part at token" in shown.stdout
    differing = told("diff", folder / "job", folder / "other").stdout
    assert f"letter: {flips.better} better in B, {flips.worse} worse, of 18" in differing
    listed = json.loads(told("diff", folder / "job", folder / "other", "--json").stdout)["flips"]
    assert [each["name"] for each in listed] == sorted(found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "lettre"], "there is no evaluation 'lettre'"),
        (["--evals", "none.yaml"], "has no evals"),
        (["--evals", "many.yaml"], "3 is more than the samples of a row, 2"),
        (["--against", "nothing"], "has no such evaluation"),
        (["--out", "x"], "--out goes with a job file"),
    ],
)
def test_refused(
    folder: Path, found: dict[str, Any], arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = JOB.replace("TEMPERATURE", "1")
    Path("none.yaml").write_text(text.partition("evals:")[0])
    Path("many.yaml").write_text(text.replace("n: 2", "n: 3").replace("[1, 2]", "[3]"))
    result = told("eval", "job", *arguments)
    assert result.exit_code not in (0, 3)
    assert says in " ".join(result.output.split())


def test_a_run_whose_files_changed(folder: Path, found: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(folder / "job", tmp_path / "run")
    part = next((tmp_path / "run" / "rows").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    assert told("eval", tmp_path / "run", "--job-dir", folder).exit_code == 8
