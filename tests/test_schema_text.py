"""A JSON Schema in one form: the same text for the same schema, and another order is another schema."""

import pytest

from batchgen.schema_text import schema_text


def test_text_and_value_are_one() -> None:
    value = {"type": "object", "properties": {"é": {"enum": [1, 1.5, None, True]}, "a": {}}}
    text = schema_text(value)
    assert text == '{"type":"object","properties":{"é":{"enum":[1,1.5,null,true]},"a":{}}}'
    assert schema_text(text) == schema_text(f"  {text.replace(',', ' , ')}\n") == text


def test_the_order_of_properties_is_kept() -> None:
    assert schema_text('{"b": 1, "a": 2}') != schema_text('{"a": 2, "b": 1}')


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is no JSON"),
        ("{'a': 1}", "is no JSON"),
        ("[]", "must be a JSON object"),
        ("true", "must be a JSON object"),
        ('{"a": 1, "a": 2}', "holds the key 'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "holds the key 'b' twice"),
        ('{"a": Infinity}', "Infinity is no JSON number"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_schema(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        schema_text(text)


def test_a_number_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="JSON"):
        schema_text({"minimum": float("nan")})
