"""The section about another run: what diff finds, in words."""

from pathlib import Path

import pytest
from support.report_runs import Page, ok, write_run

from batchgen.errors import VerifyError
from batchgen.io.manifest import part_name
from batchgen.records import Completion, Request
from batchgen.report import comparison
from batchgen.report.page import render
from batchgen.report.summary import summarise

KEYS = [f"row-{i}" for i in range(8)]


def plain(request: Request) -> Completion:
    return ok(request, [1, 2, 3, 4], f"the quick fox of {request.row_key}")


def strayed(request: Request) -> Completion:
    """Other tokens at the third place of one sample, by nothing that a manifest knows."""
    if (request.row_key, request.sample_index) == ("row-5", 1):
        return ok(request, [1, 2, 9, 4], "the quick <b>dog</b>")
    return plain(request)


def compare(tmp_path: Path, **there: object) -> Page:
    run = write_run(tmp_path / "here", KEYS, plain)
    other = write_run(tmp_path / "there", **({"keys": KEYS, "answer": plain} | there))  # type: ignore[arg-type]
    return Page(render(summarise(run, against=other.rename(tmp_path / "baseline"))))


def test_equal_roots(tmp_path: Path) -> None:
    page = compare(tmp_path)
    assert "against" in page.ids()
    assert "Both runs have the same root: all 16 rows are those of the run baseline." in page.text


def test_without_another_run_there_is_no_section(tmp_path: Path) -> None:
    page = Page(render(summarise(write_run(tmp_path, KEYS, plain))))
    assert "against" not in page.ids()


def test_a_field_that_was_changed_is_named(tmp_path: Path) -> None:
    page = compare(tmp_path, sampling={"temperature": 0.5})
    assert "16 of 16 rows differ from the run baseline." in page.text
    assert "because of sampling.temperature : 1.0 here, 0.5 there" in page.text


def test_a_row_that_nothing_explains(tmp_path: Path) -> None:
    page = compare(tmp_path, answer=strayed)
    assert "1 of 16 rows differ" in page.text
    assert "unexplained: nothing that differs between the manifests can act on these rows" in page.text
    assert "row-5 #1 other tokens, from token 2" in page.text
    assert "1 2 [3] 4" in page.text
    assert "1 2 [9] 4" in page.text
    assert not page.all("b") or "<b>dog</b>" in page.text
    assert "Where answers part" in page.text


def test_rows_of_one_run_alone(tmp_path: Path) -> None:
    page = compare(tmp_path, keys=KEYS[:6])
    assert "only in this run" in page.text


def test_a_run_that_does_not_verify_is_not_compared(tmp_path: Path) -> None:
    run = write_run(tmp_path / "here", KEYS, plain)
    other = write_run(tmp_path / "there", KEYS, strayed)
    file = other / part_name(0)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(VerifyError, match="does not verify"):
        summarise(run, against=other)


def test_texts_are_cut_to_where_they_part() -> None:
    same = "x" * 500
    here, there = comparison._parted_texts(same + "one", same + "two")
    assert here == ("… " + "x" * 80, "one")
    assert there == ("… " + "x" * 80, "two")
    assert comparison._parted_texts("same", "same") == (("same", ""), ("same", ""))
    assert comparison._parted_texts(None, "text") == (None, ("", "text"))
    assert comparison._parted_texts("", "text") == (("", ""), ("", "text"))
