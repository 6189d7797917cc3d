"""Ranges of the sampling parameters: one list for jobs and for callers in Python."""

from dataclasses import fields
from typing import Any

import pytest

from batchgen.records import SamplingParams, check_params


def test_the_defaults_are_in_range() -> None:
    assert check_params(SamplingParams()) == []


@pytest.mark.parametrize(
    "good",
    [
        {"temperature": 0},
        {"temperature": 0.01},
        {"top_k": -1},
        {"top_k": 40},
        {"min_tokens": 16, "max_tokens": 16},
        {"logprobs": 0},
        {"logprobs": 20},
        {"logit_bias": {0: -100, 5: 100.0}},
        {"stop": ("a", "b"), "stop_token_ids": (0, 7), "bad_words": ("x",)},
    ],
)
def test_edges_of_the_ranges_are_in(good: dict[str, Any]) -> None:
    assert check_params(SamplingParams(**good)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", 0.001),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "0.7"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.0),
        ("min_p", -0.01),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("max_tokens", None),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", 21),
        ("logprobs", True),
        ("stop", "a string is an iterable of strings"),
        ("stop", ("",)),
        ("stop", ["a"]),
        ("bad_words", ("",)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", 3),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
        ("include_stop_str_in_output", "yes"),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {"1": 1.0}),
    ],
)
def test_one_bad_field_is_the_one_that_is_named(name: str, value: Any) -> None:
    problems = check_params(SamplingParams(**{name: value}))
    assert [problem.field for problem in problems] == [name]


def test_all_problems_are_listed_at_once() -> None:
    problems = check_params(SamplingParams(top_p=3.0, n=0, stop=("",)))
    assert [problem.field for problem in problems] == ["n", "top_p", "stop"]


def test_every_field_is_checked() -> None:
    """A new field must come with its range: an object of no type is refused by each."""
    for field in fields(SamplingParams):
        bad: Any = object()
        assert [problem.field for problem in check_params(SamplingParams(**{field.name: bad}))] == [field.name]
