"""How many tokens a text needs at least: never more than one that can be written, and not much less."""

import json
from typing import Any

import pytest
from support.tiny_tokenizers import save_chatml

from batchgen.records import StructuredOutputs
from batchgen.text.least_tokens import Pieces, least_of_choice, least_of_schema
from batchgen.text.tokenizer import Tokenizer

INF = float("inf")
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"enum": ["student", "teacher"]}, "age": {"type": "integer"}},
    "required": ["name", "kind", "age"],
}
LISTS: dict[str, Any] = {
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    },
    "$ref": "#/$defs/node",
}
LISTS["$defs"]["node"]["required"] = ["next"]
CASES = [  # a schema, the shortest text of it
    (PERSON, '{"name": "", "kind": "student", "age": 1}'),
    ({"anyOf": [PERSON, {"const": "nothing at all"}]}, '"nothing at all"'),
    ({"type": "array", "items": PERSON, "minItems": 3}, json.dumps([{"name": "", "kind": "student", "age": 1}] * 3)),
    ({"type": ["string", "boolean"], "minLength": 9}, "true"),
    ({"type": "string", "minLength": 30}, json.dumps("x" * 30)),
    (LISTS, '{"next": null}'),
    ({"type": "array"}, "[]"),
    ({}, "1"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(save_chatml(tmp_path_factory.mktemp("chatml")))


@pytest.fixture(scope="module")
def pieces(tokenizer: Tokenizer) -> Pieces:
    return Pieces(tokenizer.vocabulary)


@pytest.mark.parametrize(("schema", "shortest"), CASES)
def test_no_text_of_a_schema_has_fewer(
    tokenizer: Tokenizer, pieces: Pieces, schema: dict[str, Any], shortest: str
) -> None:
    least = least_of_schema(json.dumps(schema), pieces)
    assert 1 <= least <= pieces.exact(shortest.encode())
    matcher = tokenizer.matcher(StructuredOutputs(json_schema=json.dumps(schema)), tokenizer.vocab_size)
    for token_id in tokenizer.encode(shortest):
        assert token_id not in matcher.banned(frozenset())
        matcher.accept(token_id)
    assert matcher.may_end, "it is one of the schema's"


def test_the_bound_is_of_use(pieces: Pieces) -> None:
    """Names of properties are most of such a text."""
    schema, shortest = CASES[2]
    assert least_of_schema(json.dumps(schema), pieces) > pieces.exact(shortest.encode()) / 3


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "items": False, "minItems": 1},
    ],
)
def test_a_schema_whose_texts_never_end(pieces: Pieces, schema: dict[str, Any]) -> None:
    assert least_of_schema(json.dumps(schema), pieces) == INF


def test_a_choice_is_counted_exactly(tokenizer: Tokenizer, pieces: Pieces) -> None:
    """Against every way to cut a text."""
    tokens = {token for i, token in enumerate(tokenizer.vocabulary.tokens) if i > 2 and token}

    def fewest(text: bytes) -> int:
        cuts = (size for size in range(1, len(text) + 1) if text[:size] in tokens)
        return min((1 + fewest(text[size:]) for size in cuts), default=99) if text else 0

    for text in ("the", "the quick dog", "naïve", "zzz"):
        assert least_of_choice([text], pieces) == fewest(text.encode())
    assert least_of_choice(["the quick dog", "the"], pieces) == fewest(b"the")


def test_a_literal_shares_its_ends(pieces: Pieces) -> None:
    """Within a longer text a token may reach beyond both ends of it, and never fewer are needed alone."""
    assert pieces.within(b"he") == 1, "as in 'the'"
    for text in (b'"name"', b"quick", b"qzq"):
        assert pieces.within(text) <= pieces.exact(text)
