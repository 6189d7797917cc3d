"""How numbers and foreign text are written."""

import math

import pytest

from batchgen.report.words import brief, clipped, clock, compact, counted, percent, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc é 日本 🎉", "a\tb\nc é 日本 🎉"),
        ("\0\x1b[31m\r\x7f", "␀␛[31m␍␡"),
        ("\x85\x9b", "��"),
        ("abc\u202egnp.exe\u2069", "abc[U+202E]gnp.exe[U+2069]"),
        ("שלום", "שלום"),
        ("\ud800", "�"),
        (7, "7"),
    ],
)
def test_text_that_would_act_is_shown(text: object, expected: str) -> None:
    assert shown(text) == expected


def test_the_middle_of_a_long_text_is_left_out() -> None:
    text = "a" * 5000 + "b" * 5000
    assert clipped(text, 10_000) == text
    assert clipped(text, 100) == f"{'a' * 50} … 9,900 characters … {'b' * 50}"


def test_the_first_words() -> None:
    assert brief("one two three", 13) == "one two three"
    assert brief("one two three", 9) == "one two …"
    assert brief("x" * 100, 10) == "x" * 10 + " …"
    assert brief(" " * 100, 10) == " " * 10 + " …"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (7, "7"),
        (7.456, "7.46"),
        (99.94, "99.9"),
        (120.4, "120"),
        (999.4, "999"),
        (999.7, "1k"),
        (1200, "1.2k"),
        (45_000, "45k"),
        (999_999, "1M"),
        (3.2e12, "3.2T"),
        (2**63, "9223372T"),
    ],
)
def test_compact_numbers(value: float, expected: str) -> None:
    assert compact(value) == expected


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (0, 0, "–"),
        (0, 9, "0%"),
        (1, 8, "12.5%"),
        (9, 9, "100%"),
        (1, 10**6, "<0.1%"),
        (10**6 - 1, 10**6, ">99.9%"),
    ],
)
def test_percent_never_rounds_to_none_or_all(part: int, whole: int, expected: str) -> None:
    assert percent(part, whole) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (9, "9 s"),
        (59.4, "59.4 s"),
        (125, "2 min 5 s"),
        (1800, "30 min"),
        (11_045, "3 h 4 min"),
        (2e5, "2 d 8 h"),
        (2**40, "12,725,829 d 1 h"),
    ],
)
def test_clock(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected


def test_no_duration_is_written_as_sixty_seconds() -> None:
    texts = {clock(59 + step / 1000) for step in range(1000)}
    assert not any(text.startswith("60 s") for text in texts)
    for edge, name in ((60, "1 min"), (3600, "1 h"), (86_400, "1 d")):
        assert {clock(math.nextafter(edge, 0)), clock(edge)} == {name}


def test_counted() -> None:
    assert [counted(value, "row") for value in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
