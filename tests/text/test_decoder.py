"""Decoding id by id gives the text of decoding all ids at once, and no piece of it is ever taken back."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_tokenizers import added, byte_level, sentencepiece
from tokenizers import Tokenizer as PlainTokenizer

from batchgen.errors import ModelError
from batchgen.text.decoder import decoder_factory
from batchgen.text.parts import TokenizerParts
from batchgen.text.tokenizer import Tokenizer


def _byte_level() -> dict[str, Any]:
    """With added tokens whose characters are, and are not, in the byte alphabet."""
    definition = byte_level(["<|end|>"])
    size = len(definition["model"]["vocab"])
    more = [added(size, "<\u4f60>", special=False), added(size + 1, "\u00e9\u00e9", special=True)]
    definition["added_tokens"] += more
    return definition


def _no_strip() -> dict[str, Any]:
    definition = sentencepiece()
    definition["decoder"]["decoders"].pop()
    return definition


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "byte_level": _byte_level,
    "sentencepiece": sentencepiece,
    "sentencepiece_no_strip": _no_strip,
}


@cache
def both(kind: str) -> tuple[Tokenizer, PlainTokenizer]:
    definition = KINDS[kind]()
    return Tokenizer(TokenizerParts(definition, {}, ())), PlainTokenizer.from_str(json.dumps(definition))


def pushed(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    decoder = tokenizer.decoder(skip_special_tokens=skip)
    return [*(decoder.push(i) for i in ids), decoder.finish()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids(kind: str, data: st.DataObject, skip: bool) -> None:
    """Random ids are mostly invalid UTF-8, with some beyond the vocabulary."""
    tokenizer, plain = both(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    expected = plain.decode(ids, skip_special_tokens=skip)
    assert "".join(pushed(tokenizer, ids, skip=skip)) == expected
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece_no_strip"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_byte_runs_and_spaces(kind: str, data: st.DataObject) -> None:
    """Runs of byte tokens, whole and broken characters, and leading spaces, which random ids rarely make."""
    tokenizer, plain = both(kind)
    space = tokenizer.token_id("\u2581") or 0
    runs = st.one_of(st.text(max_size=2).map(lambda text: text.encode()), st.binary(max_size=3))
    pieces = st.one_of(runs.map(lambda run: [3 + byte for byte in run]), st.just([space]), st.just([1]), st.just([300]))
    ids = [i for piece in data.draw(st.lists(pieces, max_size=12)) for i in piece]
    for skip in (True, False):
        assert "".join(pushed(tokenizer, ids, skip=skip)) == plain.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=30))
def test_text_comes_back_whole(kind: str, text: str) -> None:
    """Valid text decodes without a replacement character in any piece: no character is split."""
    tokenizer, _ = both(kind)
    pieces = pushed(tokenizer, tokenizer.encode(text, add_special_tokens=False), skip=True)
    added_space = kind == "sentencepiece_no_strip" and bool(text)
    assert "".join(pieces) == " " * added_space + text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_pieces_of_one_character_wait_for_its_end() -> None:
    tokenizer, _ = both("byte_level")
    ids = tokenizer.encode("a\u0e01.")
    assert len(ids) == 5
    assert pushed(tokenizer, ids, skip=True) == ["a", "", "", "\u0e01", ".", ""]
    assert pushed(tokenizer, ids[:3], skip=True) == ["a", "", "", "\ufffd"]


def test_a_broken_byte_run_is_one_mark_a_byte() -> None:
    """What the SentencePiece kind does: so the run's first, valid character may not be given out early."""
    tokenizer, _ = both("sentencepiece")
    run = [3 + byte for byte in "\u4f60".encode()]
    assert pushed(tokenizer, [*run, 300], skip=True)[:4] == [
        "",
        "",
        "",
        "\u4f60" + tokenizer.decode([3 + 0x61, 300])[1:],
    ]
    assert "".join(pushed(tokenizer, [*run, 3 + 0xFF], skip=True)) == "\ufffd" * 4


def test_a_decoder_can_be_used_again() -> None:
    tokenizer, _ = both("sentencepiece")
    decoder = tokenizer.decoder()
    ids = tokenizer.encode("the fox")
    for _ in range(2):
        assert "".join(decoder.push(i) for i in ids) + decoder.finish() == "the fox"


@pytest.mark.parametrize("spec", [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": [{"type": "Fuse"}]}])
def test_other_decoders_are_refused(spec: Any) -> None:
    with pytest.raises(ModelError, match="decoder is not supported"):
        decoder_factory(spec)
