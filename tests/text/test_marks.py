"""Hiding control tokens in data, and finding them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import RowError
from batchgen.text import marks as marks_module
from batchgen.text.marks import ControlTokens, Marks

LITERALS = ["<s>", "<s>>", "<|end|>", "[A]"]
FRAGMENTS = ["<s>", "<s>>", "<|end|>", "[A]", "<", "|>", "<|en", "d|>", " ", "\n", "x", "\U00100000", "\U0010fffd", "]"]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
data = st.recursive(
    texts | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)


def reveal(marks: Marks, value: Any) -> Any:
    if isinstance(value, str):
        return marks.reveal(value)
    if isinstance(value, dict):
        return {marks.reveal(key): reveal(marks, item) for key, item in value.items()}
    return [reveal(marks, item) for item in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(data)
def test_hide_and_reveal(value: Any) -> None:
    control, marks = ControlTokens(LITERALS), Marks(ControlTokens(LITERALS))
    hidden = marks.hide(value)
    assert control.find_all(hidden) == []
    assert reveal(marks, hidden) == value


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, min_size=2, max_size=5), st.booleans())
def test_no_control_token_across_strings(pieces: list[str], trim: bool) -> None:
    """Also when a template trims each."""
    control, marks = ControlTokens(LITERALS), Marks(ControlTokens(LITERALS))
    hidden = [piece.strip() if trim else piece for piece in marks.hide(pieces)]
    assert control.find("".join(hidden)) == []
    assert marks.reveal("".join(hidden)) == "".join(piece.strip() if trim else piece for piece in pieces)


def test_ordinary_text_is_left_alone() -> None:
    marks = Marks(ControlTokens(LITERALS))
    value = {"role": "user", "content": " a < b, b > c [1] \n", "n": 3}
    assert marks.hide(value) == value
    assert not marks.in_text(" a < b, b > c [1] \n")


def test_find_takes_the_longest() -> None:
    control = ControlTokens(LITERALS)
    assert control.find("a<s>>b<s>c<|end|>") == ["<s>>", "<s>", "<|end|>"]
    assert control.find_all([{"[A]": ["<s>", 1, None]}]) == ["[A]", "<s>"]
    assert ControlTokens([]).find("<s>") == []


def test_more_marks_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "_LAST", marks_module._FIRST + 1)
    marks = Marks(ControlTokens(LITERALS))
    marks.hide("<s> and [A]")
    with pytest.raises(RowError, match="private-use"):
        marks.hide("<|end|>")
