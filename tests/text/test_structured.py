"""What a job is told of a grammar before a row is made."""

import json

import pytest
from support.tiny_tokenizers import save_chatml

from batchgen.errors import SpecError
from batchgen.records import SamplingParams, StructuredOutputs
from batchgen.text.structured import check_structured, grammar_digest
from batchgen.text.tokenizer import Tokenizer

ENDS = frozenset({2})
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(save_chatml(tmp_path_factory.mktemp("chatml")))


def check(tokenizer: Tokenizer, outputs: StructuredOutputs, max_tokens: int, ends: frozenset[int] = ENDS) -> None:
    params = SamplingParams(structured_outputs=outputs, max_tokens=max_tokens)
    check_structured(params, tokenizer, tokenizer.vocab_size, ends)


@pytest.mark.parametrize(
    ("outputs", "max_tokens", "fault"),
    [
        (StructuredOutputs(json_schema=json.dumps(PERSON)), 2, "every text of it has [3-9] tokens or more"),
        (StructuredOutputs(json_schema=json.dumps(ENDLESS)), 500, "no text of 500 tokens"),
        (StructuredOutputs(json_schema='{"$ref": "#"}'), 500, "no text satisfies it"),
        (StructuredOutputs(json_schema='{"type": "array", "minItems": 100000}'), 64, "every text of it"),
        (StructuredOutputs(json_schema='{"type": "object", "type": "array"}'), 64, "'type' twice"),
        (StructuredOutputs(json_schema='{"multipleOf": NaN}'), 64, "NaN is no JSON number"),
        (StructuredOutputs(json_schema='{"a":' * 100_000), 64, "nested too deeply"),
        (StructuredOutputs(json_schema='{"type": "integer", "uniqueItems": true}'), 64, "Unimplemented keys"),
        (StructuredOutputs(regex="[0-9]{3000}"), 8, "no text of 8 tokens"),
        (StructuredOutputs(regex="(a"), 8, "unclosed group"),
        (StructuredOutputs(choice=("zzzz", "qqqqq")), 3, "every text of it has 4 tokens"),
        (StructuredOutputs(grammar="start: a"), 64, "unknown name"),
    ],
)
def test_a_grammar_that_cannot_be(
    tokenizer: Tokenizer, outputs: StructuredOutputs, max_tokens: int, fault: str
) -> None:
    with pytest.raises(SpecError, match=fault) as raised:
        check(tokenizer, outputs, max_tokens)
    assert raised.value.where == f"sampling.structured_outputs.{outputs.kind}"


@pytest.mark.parametrize(
    ("outputs", "max_tokens"),
    [
        (StructuredOutputs(json_schema=json.dumps(PERSON)), 12),
        (StructuredOutputs(json_schema='{"type": "integer", "maximum": 20000000000}'), 4),
        (StructuredOutputs(json_schema='{"type": "array", "items": {"$ref": "#"}}'), 4),
        (StructuredOutputs(regex="[0-9]{8}"), 8),
        (StructuredOutputs(choice=("zzzz", "qqqqq")), 4),
        (StructuredOutputs(grammar='start: "a" start | "b"'), 1),
    ],
)
def test_a_grammar_that_can_be(tokenizer: Tokenizer, outputs: StructuredOutputs, max_tokens: int) -> None:
    check(tokenizer, outputs, max_tokens)


def test_a_model_that_cannot_end_a_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(SpecError, match="no end-of-sequence token"):
        check(tokenizer, StructuredOutputs(regex="a"), 4, frozenset())


def test_what_compiled_a_grammar_is_on_record() -> None:
    assert grammar_digest(SamplingParams()) == {}, "and runs without one stay as they are"
    [(name, value)] = grammar_digest(SamplingParams(structured_outputs=StructuredOutputs(regex="a"))).items()
    assert (name, value.split()[0]) == ("grammars", "llguidance")
