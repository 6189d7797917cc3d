"""Pydantic's findings in our words: the key, what is wrong, and the nearest name, at any depth."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchgen.validation import explain


@dataclass(frozen=True)
class Plain:
    width: int = 1


class Inner(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    colour: str = "red"
    plain: Plain | None = None


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    sizes: dict[int, float] = {}
    some: Annotated[tuple[Inner, ...], Field(min_length=1)] = (Inner(),)


def problems(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate_json(json.dumps(document))
    found = explain(caught.value, Outer, {"inner.future"})
    return [(problem.key, problem.message, problem.hint) for problem in found]


@pytest.mark.parametrize(
    ("document", "key", "message", "hint"),
    [
        ({"iner": {}}, "iner", "unknown key", "did you mean 'inner'?"),
        ({"inner": {"color": "x"}}, "inner.color", "unknown key", "did you mean 'colour'?"),
        ({"items": [{}, {"zzz": 1}]}, "items[1].zzz", "unknown key", "known: colour, plain"),
        ({"items": [{"plain": {"widht": 1}}]}, "items[0].plain.widht", "unknown key", "did you mean 'width'?"),
        ({"inner": {"future": 1}}, "inner.future", "is not supported yet", "remove it"),
        ({"inner": {"colour": 1.1}}, "inner.colour", "must be a string, got 1.1", "write it in quotes"),
        ({"some": []}, "some", "must have at least 1 item, not 0, got []", ""),
        ({"some": [{"zzz": 1}]}, "some[0].zzz", "unknown key", "known: colour, plain"),  # and not: none
        ({"items": {}}, "items", "must be a list, got {}", ""),
        ({"inner": 3}, "inner", "must be a mapping, got 3", ""),
        ({"sizes": {"1": "x" * 99}}, "sizes.1", f"must be a number, got '{'x' * 56}...", ""),
    ],
)
def test_one_problem(document: dict[str, Any], key: str, message: str, hint: str) -> None:
    assert problems(document) == [(key, message, hint)]


def test_all_problems_in_the_order_of_the_fields() -> None:
    document = {"sizes": {"a": 1}, "items": [{"colour": 2}], "inner": {"colour": None}}
    assert [key for key, _, _ in problems(document)] == ["inner.colour", "items[0].colour", "sizes.a"]
