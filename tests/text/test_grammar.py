"""Which tokens a grammar allows: those whose bytes go on with a text of it, whatever a tokenizer would have chosen.

Guards against tokens that are forced, ends that come early, a text of which the decoder drops what the grammar saw,
and a lexer that texts share, so that one of them can end another.
"""

import json
import pickle
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_tokenizers import save, save_chatml, sentencepiece

from batchgen.errors import RowError
from batchgen.records import StructuredOutputs
from batchgen.text.grammar import GrammarError, Grammars, Matcher
from batchgen.text.tokenizer import Tokenizer

END = frozenset({2})  # <|im_end|>, </s>
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1, None]}}, "required": ["b", "a"]}


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    return Tokenizer.from_folder(
        save_chatml(folder) if request.param == "byte_level" else save(folder, sentencepiece())
    )


def start(tokenizer: Tokenizer, more: int = 0, **outputs: Any) -> Matcher:
    return tokenizer.matcher(StructuredOutputs(**outputs), tokenizer.vocab_size + more)


def allowed(tokenizer: Tokenizer, matcher: Matcher) -> set[int]:
    return set(range(tokenizer.vocab_size)) - set(matcher.banned(END).tolist())


def feed(tokenizer: Tokenizer, matcher: Matcher, text: str) -> None:
    """Byte by byte where the vocabulary has no token for more, always with the shortest token that fits."""
    rest, tokens = text.encode(), tokenizer.vocabulary.tokens
    while rest:
        fits = [i for i in sorted(allowed(tokenizer, matcher) - END) if rest.startswith(tokens[i]) and tokens[i]]
        assert fits, f"nothing is allowed before {rest!r}"
        token = min(fits, key=lambda i: len(tokens[i]))
        matcher.accept(token)
        rest = rest[len(tokens[token]) :]


@pytest.mark.parametrize("so_far", ["", "a", "ab", "ab1"])
def test_a_token_is_allowed_iff_a_text_goes_on_with_it(tokenizer: Tokenizer, so_far: str) -> None:
    """Of a language that can be written down: a, then b or nothing, then up to two digits."""
    language = [
        "a" + b + d for b, n in product(("", "b"), range(3)) for d in map("".join, product("0123456789", repeat=n))
    ]
    matcher = start(tokenizer, regex="ab?[0-9]{0,2}")
    feed(tokenizer, matcher, so_far)
    starts = {text[:size].encode() for text in language for size in range(len(text) + 1)}
    control = set(tokenizer.vocabulary.special_token_ids)
    good = {
        i
        for i, token in enumerate(tokenizer.vocabulary.tokens)
        if token and i not in control and so_far.encode() + token in starts
    }
    assert len(good) >= 1
    assert allowed(tokenizer, matcher) == (good | END if so_far in language else good)


def test_ids_that_no_tokenizer_has_are_banned(tokenizer: Tokenizer) -> None:
    """A model may have more rows than tokens: nothing can be said of the text of the others."""
    size = tokenizer.vocab_size
    matcher = start(tokenizer, more=7, regex="(?s:.*)")
    assert set(range(size, size + 7)) <= set(matcher.banned(END).tolist())


def test_a_text_ends_where_it_is_whole_and_nowhere_else(tokenizer: Tokenizer) -> None:
    matcher = start(tokenizer, choice=("yes", "yes, I do", "no"))
    assert not matcher.may_end
    feed(tokenizer, matcher, "yes")
    assert matcher.may_end
    assert allowed(tokenizer, matcher) > END
    feed(tokenizer, matcher, ", I do")
    assert allowed(tokenizer, matcher) == END


def test_json_is_written_as_python_writes_it_and_in_the_order_of_the_schema(tokenizer: Tokenizer) -> None:
    for text in ('{"b": "x\\n\\"y\\"", "a": null}', json.dumps({"b": "", "a": 1})):
        matcher = start(tokenizer, json_schema=json.dumps(SCHEMA))
        feed(tokenizer, matcher, text)
        assert allowed(tokenizer, matcher) == END
    for text in ('{"a": 1', '{ "b"', '{"b":"'):
        with pytest.raises(AssertionError, match="nothing is allowed"):
            feed(tokenizer, start(tokenizer, json_schema=json.dumps(SCHEMA)), text)


def test_a_schema_may_say_how_its_json_is_written(tokenizer: Tokenizer) -> None:
    tight = {**SCHEMA, "x-guidance": {"key_separator": ":", "item_separator": ","}}
    feed(tokenizer, start(tokenizer, json_schema=json.dumps(tight)), '{"b":"","a":1}')


def test_characters_of_several_bytes(tokenizer: Tokenizer) -> None:
    """In whole tokens or byte by byte; half a character is no end."""
    matcher = start(tokenizer, regex="[é😀]+")
    feed(tokenizer, matcher, "é😀")
    assert matcher.may_end
    with pytest.raises(AssertionError, match="nothing is allowed"):
        feed(tokenizer, matcher, "e")


def test_a_space_that_the_decoder_drops_begins_no_text(tmp_path: Path) -> None:
    """SentencePiece takes a space from the front of an answer: the grammar must not have counted on it."""
    tokenizer = Tokenizer.from_folder(save(tmp_path, sentencepiece()))
    assert tokenizer.vocabulary.strips_space
    matcher = start(tokenizer, regex=" ?the")
    first = [tokenizer.vocabulary.tokens[i] for i in allowed(tokenizer, matcher)]
    assert first
    assert not any(token.startswith(b" ") for token in first)
    ids = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.vocabulary.tokens[ids[0]].startswith(b" "), "and with it the tokenizer's own first token"


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        ({"regex": "(ab|c"}, "unclosed group"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"grammar": 'start: "a" | b\n'}, r'at 1\(8\): unknown name: "b"'),
        ({"grammar": 'x: "a"'}, "no start rule"),
        ({"json_schema": '{"type": "nope"}'}, "Invalid type: nope"),
        ({"json_schema": '{"not": {}}'}, "Unimplemented keys"),
        ({"json_schema": '{"not": {}, "x-guidance": {"lenient": true}}'}, "Unimplemented keys"),
        ({"json_schema": '{"$ref": "#/$defs/x"}'}, "does not exist"),
        ({"json_schema": '{"type": "string", "minLength": 5, "maxLength": 3}'}, "minLength"),
        ({"json_schema": '{"enum": []}'}, "empty"),
        ({"json_schema": "[]"}, "must be a JSON object"),
        ({"regex": "a" * (2**20 + 1)}, "are the most"),
    ],
)
def test_what_cannot_be_compiled_is_named(tokenizer: Tokenizer, outputs: dict[str, Any], fault: str) -> None:
    with pytest.raises(GrammarError, match=fault) as raised:
        start(tokenizer, **outputs)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("outputs", [{"json_schema": '{"$ref": "#"}'}, {"grammar": "start: A\nA: /a/ & /b/"}])
def test_a_grammar_without_a_text_begins_none(tokenizer: Tokenizer, outputs: dict[str, Any]) -> None:
    with pytest.raises(RowError) as raised:
        start(tokenizer, **outputs)
    assert raised.value.code == "grammar"


def test_a_text_that_goes_astray_is_an_error_of_its_own(tokenizer: Tokenizer) -> None:
    matcher = start(tokenizer, choice=("yes",))
    with pytest.raises(RowError, match="cannot go on"):
        matcher.accept(tokenizer.vocabulary.tokens.index(b"n"))


def test_a_tokenizer_travels_with_its_grammars_left_behind(tokenizer: Tokenizer) -> None:
    start(tokenizer, choice=("yes",))
    sent = pickle.loads(pickle.dumps(tokenizer))
    assert np.array_equal(start(sent, choice=("yes",)).banned(END), start(tokenizer, choice=("yes",)).banned(END))


@pytest.fixture
def narrow(tmp_path: Path) -> Tokenizer:
    """Grammars may have few states here, as a large one soon has many."""
    import llguidance

    tokenizer = Tokenizer.from_folder(save_chatml(tmp_path))
    tokenizer._grammars._limits = llguidance.LLParserLimits(max_lexer_states=70, verbose_errors=False)
    return tokenizer


WIDE: dict[str, Any] = {"regex": "([a-z]{1,7}x[0-9]{1,9}y){1,50}"}


def exhaust(tokenizer: Tokenizer, matcher: Matcher) -> str:
    with pytest.raises(RowError) as raised:
        feed(tokenizer, matcher, "abcx12345y" * 20)
    return str(raised.value)


def test_one_text_cannot_end_another(narrow: Tokenizer) -> None:
    """The counters of a text are its own: it fails at the same place with the same words, after whatever else."""
    mate = start(narrow, **WIDE)
    first = exhaust(narrow, start(narrow, **WIDE))
    assert re.fullmatch("the text cannot go on: lexer error: too many states: .*", first)
    feed(narrow, mate, "abcx")
    assert exhaust(narrow, start(narrow, **WIDE)) == first


def test_counter_copies_of_one_matcher_end_each_other(narrow: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Had matchers been copied from a compiled one, which is cheaper, a text would fail for what another one did."""
    compiled: list[Any] = []
    right = Grammars.matcher

    def copied(grammars: Grammars, outputs: StructuredOutputs, vocab_size: int) -> Matcher:
        compiled.append(right(grammars, outputs, vocab_size)._inner if not compiled else compiled[0])
        return Matcher(compiled[0].deep_copy(), narrow.vocabulary, vocab_size)

    monkeypatch.setattr(Grammars, "matcher", copied)
    mate = start(narrow, **WIDE)
    exhaust(narrow, start(narrow, **WIDE))
    with pytest.raises(RowError):
        feed(narrow, mate, "abcx")
