"""Two runs of the lm-evaluation-harness, compared by the files of their samples."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batchgen.cli import cli

Row = dict[str, Any]


def sample(doc_id: int, responses: list[list[Any]], **scores: Any) -> Row:
    """A line as the harness writes it: responses as text, of a log-likelihood as two."""
    hashes = {"doc_hash": f"d{doc_id}", "prompt_hash": f"p{doc_id}", "target_hash": "t"}
    about = {"doc_id": doc_id, "filter": "none", "resps": responses, "metrics": list(scores)}
    return {**about, **hashes, **scores}


def choice(doc_id: int, first: float, acc: float) -> Row:
    return sample(doc_id, [[[str(first), "False"]], [["-2.5", "True"]]], acc=acc, acc_norm=1.0)


BASE = [choice(0, -1.25, 1.0), choice(1, -3.5, 0.0), choice(2, -0.5, 1.0)]


def write(folder: Path, rows: list[Row], task: str = "choice_a", time: str = "2026-01-02T03-04-05.678901") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"samples_{task}_{time}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def diff(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["diff", *map(str, arguments)])


def test_the_same_to_the_last_digit(tmp_path: Path) -> None:
    """Scores may be NaN, which equals nothing."""
    rows = [*BASE, sample(3, [["text"]], f1=float("nan"))]
    a = write(tmp_path / "a" / "model", rows)
    write(tmp_path / "b", rows[::-1], time="2026-02-02T03-04-05.678901")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (found.exit_code, found.stdout) == (0, "choice_a: 4 items, every response and score the same\n")
    last_digit = [*rows[:2], choice(2, -0.5000000000000001, 1.0), rows[3]]
    found = diff(a, write(tmp_path / "c", last_digit), "--json")
    assert found.exit_code == 8
    assert json.loads(found.stdout)["tasks"][0]["parted"][0]["response"] == 0


def test_flips_and_the_first_response_that_differs(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [*BASE, choice(3, -1.0, 0.0)])
    long = "x" * 90
    other = [choice(0, -1.5, 0.0), choice(1, -3.5, 1.0), choice(2, -0.25, 1.0), choice(4, -1.0, 0.0)]
    other[0]["prompt_hash"] = "other"
    found = diff(a, write(tmp_path / "b", other), "--limit", 2)
    assert found.exit_code == 8
    assert found.stdout.splitlines() == [
        "choice_a: 2 of 3 items answered otherwise; acc 1 higher in B, 1 lower in B; 1 asked otherwise; "
        "2 in one run alone",
        "  item 0: acc 1.0 -> 0.0; response 0 '-1.25, False' -> '-1.5, False'",
        "  item 1: acc 0.0 -> 1.0",
        "  and 1 more",
    ]
    repeats = [sample(0, [["same", f"{long} A {long}"]], pair=[1, 2]), sample(0, [["same"]], pair=[1, 3])]
    repeats[0]["filter"] = repeats[1]["filter"] = "strict"
    shown = diff(*(write(tmp_path / f"{i}", [row]) for i, row in enumerate(repeats))).stdout
    assert "pair 1 another in B" in shown
    assert "item 0 (strict): pair [1, 2] -> [1, 3]; response 1 'xxxx" in shown


def test_tasks_are_paired_by_name(tmp_path: Path) -> None:
    for run, tasks in (("a", "xy"), ("b", "yz")):
        for task in tasks:
            write(tmp_path / run, BASE, task)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.exit_code == 8
    assert [line.partition(":")[0] for line in found.stdout.splitlines()] == ["y", "x", "z"]


def test_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "a", BASE)
    (tmp_path / "empty").mkdir()
    twice = write(tmp_path / "twice", [BASE[0], BASE[0]])
    for text in ("[]", "{}", "no", '{"doc_id": 1, "resps": 3}'):
        (tmp_path / "bad.jsonl").write_text(f"{json.dumps(BASE[0])}\n{text}\n")
        said = diff(good, tmp_path / "bad.jsonl")
        assert said.exit_code == 7
        assert "bad.jsonl:2: is no sample of the lm-evaluation-harness" in said.stderr
    write(tmp_path / "a", BASE, time="2027-01-02T03-04-05.678901")
    cases: list[tuple[list[Any], int, str]] = [
        ([tmp_path / "empty"], 7, "holds no samples_*.jsonl, and the other does"),
        ([tmp_path / "none.jsonl"], 7, "cannot be read"),
        ([write(tmp_path / "blank", [])], 7, "holds no sample"),
        ([twice], 7, ":2: holds item 0 twice"),
        ([tmp_path / "a"], 7, "holds choice_a twice"),
        ([good, "--out", "x.parquet"], 2, "--out is for two runs"),
    ]
    for other, code, text in cases:
        said = diff(good, *other)
        assert (said.exit_code, text in said.stderr.replace("\n", " ")) == (code, True), said.stderr


@pytest.mark.parametrize("task", ["mmlu_2024-01-02T_x", "a_b_c"])
def test_a_task_s_name_may_look_like_a_time(tmp_path: Path, task: str) -> None:
    write(tmp_path / "a", BASE, task)
    assert diff(tmp_path / "a", tmp_path / "a").stdout.startswith(f"{task}: 3 items")
