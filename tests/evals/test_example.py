"""The problems and the job of examples/evals are what they say."""

import importlib.util
import re
from types import ModuleType

import pyarrow.parquet as pq
from contracts.source_tree import ROOT

from batchgen.spec import load_spec

EVALS = ROOT / "examples" / "evals"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EVALS / f"{name}.py")
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_generator_gives_the_file() -> None:
    assert module("make_arithmetic").problems().equals(pq.read_table(EVALS / "arithmetic.parquet"))


def test_the_problems_are_right() -> None:
    rows = pq.read_table(EVALS / "arithmetic.parquet").to_pylist()
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows) == 320
    for row in rows:
        assert row["choices"][row["right"]] == f" {row['answer']}"
        assert len(set(row["choices"])) == 4
        if row["kind"] != "story":
            a, sign, b = re.findall(r"(\d+) (.) (\d+)", row["question"])[0]
            assert int(row["answer"]) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]


def test_the_job_and_its_scorer() -> None:
    spec = load_spec(ROOT / "jobs" / "eval-arithmetic.yaml")
    assert [each.name for each in spec.evals] == ["exact", "near", "choice"]
    near = module("near").near
    scores = [near(text, {"answer": "49"}) for text in (" 49.", " 51", " 46", " none")]
    assert scores == [1.0, 0.5, 0.0, 0.0]
