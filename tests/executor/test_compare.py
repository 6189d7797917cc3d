"""Two completions that differ in the least way there is are told apart, and the first place is named."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from support.bent_engine import next_float

from batchgen.executor.compare import bits, differences, from_bits
from batchgen.records import Completion

DONE = Completion(
    "a",
    1,
    (5, 6, 7),
    "x y z",
    "stop",
    stop_reason="z",
    logprobs=(-0.5, 0.0, -2.0),
    top_logprobs_ids=((5, 1), (6, 2), (7, 3)),
    top_logprobs_values=((-0.5, -1.0), (0.0, -3.0), (-2.0, -2.5)),
    prompt_logprobs=(None, -1.0),
    prompt_top_logprobs_ids=(None, (8,)),
    prompt_top_logprobs_values=(None, (-1.0,)),
    kept_tokens=((3, 5), (6, 7)),
    reasoning="so",
    routed_experts=b"\x01\x02",
    routed_experts_shape=(1, 1, 2),
    routed_experts_dtype="uint8",
)
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"row_key": "b"}, "row_key 'a', then 'b'"),
    ({"sample_index": 0}, "sample_index 1, then 0"),
    ({"token_ids": (5, 9, 7)}, "token_ids of token 1: 6, then 9"),
    ({"token_ids": (5, 6)}, "token_ids of token 2: 7, then None"),
    ({"token_ids": (5, 6, 7, 8)}, "token_ids of token 3: None, then 8"),
    ({"text": "x y  z"}, "text 'x y z', then 'x y  z'"),
    ({"finish_reason": "length"}, "finish_reason 'stop', then 'length'"),
    ({"stop_reason": None}, "stop_reason 'z', then None"),
    ({"logprobs": (-0.5, -0.0, -2.0)}, "logprobs of token 1: 00000000, then 80000000"),
    ({"logprobs": (-0.5, 0.0, next_float(-2.0))}, "logprobs of token 2: c0000000, then c0000001"),
    ({"logprobs": (math.nan, 0.0, -2.0)}, "logprobs of token 0: bf000000, then 7fc00000"),
    ({"logprobs": None}, "logprobs ['bf000000', '00000000', 'c0000000'], then None"),
    ({"top_logprobs_ids": ((5, 1), (6, 2), (7, 4))}, "top_logprobs_ids of token 2: 3, then 4"),
    (
        {"top_logprobs_values": ((-0.5, next_float(-1.0)), (0.0, -3.0), (-2.0, -2.5))},
        "top_logprobs_values of token 0: bf800000, then bf800001",
    ),
    ({"top_logprobs_ids": ((5, 1), (6, 2), (7,))}, "top_logprobs_ids of token 2: [7, 3], then [7]"),
    ({"kept_tokens": ((3, 5), (6, 8))}, "kept_tokens of token 1: 7, then 8"),
    ({"reasoning": None}, "reasoning 'so', then None"),
    ({"routed_experts": b"\x01\x03" + bytes(99)}, f"routed_experts '02', then '03{'0' * 30}'"),
    ({"routed_experts": None}, "routed_experts '0102', then None"),
    ({"routed_experts_shape": (1, 2, 1)}, "routed_experts_shape of token 1: 1, then 2"),
    ({"routed_experts_dtype": "uint16"}, "routed_experts_dtype 'uint8', then 'uint16'"),
    ({"prompt_logprobs": (None, next_float(-1.0))}, "prompt_logprobs of token 1: bf800000, then bf800001"),
    ({"prompt_logprobs": (0.0, -1.0)}, "prompt_logprobs of token 0: None, then 00000000"),
    ({"prompt_top_logprobs_ids": (None, (9,))}, "prompt_top_logprobs_ids of token 1: 8, then 9"),
    ({"prompt_top_logprobs_values": (None, (-2.0,))}, "prompt_top_logprobs_values of token 1: bf800000, then c0000000"),
    ({"error_code": "template"}, "error_code None, then 'template'"),
    ({"error_message": "no"}, "error_message None, then 'no'"),
]


def test_equal_completions_have_no_difference() -> None:
    assert differences(DONE, replace(DONE)) == []
    nan = replace(DONE, logprobs=(math.nan,) * 3)
    assert differences(nan, replace(DONE, logprobs=(float("nan"),) * 3)) == []


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_a_change_of_any_field_is_named(change: dict[str, Any], text: str) -> None:
    [found] = differences(DONE, replace(DONE, **change))
    assert str(found) == text


def test_every_field_is_changed_above() -> None:
    assert {name for change, _ in CHANGES for name in change} == {field.name for field in fields(Completion)}


def test_the_earliest_token_comes_first() -> None:
    other = replace(
        DONE, text="x", token_ids=(5, 6, 8), logprobs=(-0.5, -1.0, -2.0), top_logprobs_ids=((5, 1), (6, 3), (7, 3))
    )
    found = [(difference.field, difference.token) for difference in differences(DONE, other)]
    assert found == [("logprobs", 1), ("top_logprobs_ids", 1), ("token_ids", 2), ("text", None)]


def test_bits_are_json() -> None:
    assert json.loads(json.dumps(bits(DONE)))["logprobs"] == ["bf000000", "00000000", "c0000000"]


@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_bits_lead_back(change: dict[str, Any]) -> None:
    done = replace(DONE, **change)
    assert bits(from_bits(json.loads(json.dumps(bits(done))))) == bits(done)
    with pytest.raises(KeyError):
        from_bits({})
