"""What each scorer calls right, and that a scorer that fails on one row fails on that row alone."""

from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import SpecError
from batchgen.evals.scorers import Verdict, extracted, same_json, scorer_of
from batchgen.spec_evals import EvalSpec

OK = {"status": "ok", "error_code": None}


def judge(text: str, answer: Any = None, base_dir: Path = Path(), **keys: Any) -> Verdict:
    """What the scorer of `keys` says of a row; `answer` is a column of it."""
    columns = {"answer": "answer"} if keys["scorer"] in ("exact", "json") else {}
    spec = EvalSpec.model_validate({"name": "test", **columns, **keys})
    return scorer_of(spec, base_dir)(OK | {"text": text, "answer": answer})


@pytest.mark.parametrize(
    ("text", "answer", "ignore", "right"),
    [
        ("42", "42", (), True),
        ("42 ", "42", (), False),
        (" 42\n", "42", ("space",), True),
        ("Yes", "yes", (), False),
        ("YES", "yes", ("case",), True),
        ("stra\u00dfe", "STRASSE", ("case",), True),
        ("It is so.", "it is so", ("case", "punctuation"), True),
        ("a  b", "a b", ("space",), True),
        ("ab", "a b", ("space",), False),
        ("7", 7, (), True),
        ("", "", (), True),
    ],
)
def test_exact(text: str, answer: Any, ignore: tuple[str, ...], right: bool) -> None:
    assert judge(text, answer, scorer="exact", ignore=ignore) == Verdict(float(right), text)


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("It is 12, no, 13.", r"\d+", "13"),
        ("answer: 5 apples", r"answer: (\d+)", "5"),
        ("none", r"\d+", None),
        ("all", None, "all"),
        ("x=1;x=", r"x=(\d*)", ""),
    ],
)
def test_what_is_looked_at(text: str, pattern: str | None, found: str | None) -> None:
    assert extracted(text, pattern) == found


def test_nothing_to_look_at_is_wrong_and_no_failure() -> None:
    assert judge("none", "5", scorer="exact", extract=r"\d+") == Verdict(0.0)


def test_a_row_that_failed_has_no_score() -> None:
    spec = EvalSpec(name="test", scorer="exact", answer="answer")
    row = {"status": "error", "error_code": "prompt_null", "text": None, "answer": "5"}
    assert scorer_of(spec, Path())(row) == Verdict(None, error="prompt_null")


def test_regex() -> None:
    assert judge("the end", scorer="regex", pattern="end$").score == 1
    assert judge("the end.", scorer="regex", pattern="end$").score == 0


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"a": [1, 2.0], "b": None}, {"b": None, "a": [1.0, 2]}, True),
        (1, True, False),
        (0, False, False),
        (0, None, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ("1", 1, False),
        ("x", "x", True),
    ],
)
def test_same_json(a: Any, b: Any, same: bool) -> None:
    assert same_json(a, b) is same
    assert same_json(b, a) is same


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ('{"a": 0.1}', '{"a": 0.10}', 1.0),
        ('{"a": 1}', {"a": 1}, 1.0),
        ("{a: 1}", '{"a": 1}', 0.0),
        ("NaN", "1", 0.0),
        ("[" * 100_000, "1", 0.0),
        ("0.1000000000000000055511151231257827", "0.1", 0.0),
        ("null", None, 1.0),
    ],
)
def test_json(text: str, answer: Any, score: float) -> None:
    assert judge(text, answer, scorer="json").score == score


def test_an_answer_that_is_no_json_is_a_failure_of_its_row() -> None:
    assert judge("1", "{", scorer="json").error == (
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    assert judge("1", None, scorer="exact").error == "ValueError: column answer is null"


FUNCTIONS = """
def half(text, row):
    return 0.5

def length(text, row):
    return len(text)

def picky(text, row):
    if text == "bad":
        raise RuntimeError("cannot read this")
    return row["answer"] in text

constant = 3
"""


def test_functions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)

    def of(function: str, text: str) -> Verdict:
        return judge(text, "a", tmp_path, scorer="python", function=function)

    assert of("mine.py:half", "x").score == 0.5
    assert of("mine.py:picky", "xax") == Verdict(1.0, "xax")
    assert of("mine.py:picky", "x").score == 0
    assert of("mine.py:picky", "bad") == Verdict(None, "bad", "RuntimeError: cannot read this")
    assert "not 4" in str(of("mine.py:length", "four").error)
    assert of("operator:contains", "x").error is not None
    for name, says in (
        ("gone.py:half", "FileNotFoundError"),
        ("mine.py:gone", "has no attribute 'gone'"),
        ("mine.py:constant", "is no function"),
        ("no.such.module:f", "ModuleNotFoundError"),
    ):
        with pytest.raises(SpecError, match=says):
            of(name, "x")
