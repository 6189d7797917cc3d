"""Tests that a document promises are there: each `file.py::test_name` in the tables of tests/determinism/README.md."""

import ast
import re
from pathlib import Path

import pytest
from contracts.source_tree import ROOT, functions

README = ROOT / "tests/determinism/README.md"
NAMED = re.compile(r"`([\w./]+\.py)::(\w+)`")


def missing_tests(text: str, folder: Path) -> list[str]:
    """Those that `text` names, by paths from `folder`, and that are not there."""
    return sorted({f"{file}::{name}" for file, name in NAMED.findall(text) if name not in names_in(folder / file)})


def names_in(file: Path) -> set[str]:
    """The functions of a file; none when there is no such file."""
    return {node.name for node in functions(ast.parse(file.read_text(encoding="utf-8")))} if file.is_file() else set()


def table_rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = text.split(title, 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_named_test_exists() -> None:
    assert missing_tests(README.read_text(encoding="utf-8"), README.parent) == []


def test_every_fault_has_its_test_or_its_reason() -> None:
    text = README.read_text(encoding="utf-8")
    caught = table_rows(text, "## Faults of the field")
    elsewhere = table_rows(text, "## Faults that cannot be here")
    assert len(caught) > 30
    assert [row[0] for row in caught if len(row) != 3 or not NAMED.search(row[2])] == []
    assert [row[0] for row in elsewhere if len(row) != 3 or not all(row)] == []


def test_every_axis_is_listed_and_has_its_counter_test() -> None:
    text = README.read_text(encoding="utf-8")
    listed = {row[1].strip("`") for row in table_rows(text, "# The determinism suite")}
    files = {path.name for path in README.parent.glob("test_*.py")}
    assert listed == files
    proven_elsewhere = {"test_native.py"}  # the axes of the other files once more, with their counter-tests
    for name in files - proven_elsewhere:
        assert any("counter" in test for test in names_in(README.parent / name)), name


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`test_batch.py::test_every_width`", []),
        ("`test_batch.py::test_no_such`", ["test_batch.py::test_no_such"]),
        ("`test_none.py::test_every_width`", ["test_none.py::test_every_width"]),
    ],
)
def test_a_missing_test_is_caught(text: str, missing: list[str]) -> None:
    assert missing_tests(text, README.parent) == missing
