"""Messages are checked, not trusted."""

from datetime import date
from typing import Any

import pytest

from batchgen.errors import RowError
from batchgen.text.messages import check_messages, check_text, check_tools


def code_of(messages: Any) -> tuple[str, str]:
    with pytest.raises(RowError) as failed:
        check_messages(messages)
    return failed.value.code, str(failed.value)


def test_good_messages_pass_without_their_nulls() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1, "y": None}}}
    messages = [
        {"role": "system", "content": "", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "a", "image_url": None}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]
    assert check_messages(messages) == [
        {"role": "system", "content": ""},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]


@pytest.mark.parametrize(
    ("messages", "code", "where"),
    [
        ([], "prompt_empty", "list of messages"),
        ("hi", "prompt_type", "not a list but str"),
        ([None], "prompt_null", "messages[0]"),
        (["hi"], "prompt_type", "messages[0]"),
        ([{"content": "hi"}], "prompt_type", "messages[0] has no role"),
        ([{"role": None, "content": "hi"}], "prompt_type", "role"),
        ([{"role": 3, "content": "hi"}], "prompt_type", "role"),
        ([{"role": "user"}], "prompt_null", "messages[0].content"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}],
            "prompt_null",
            "messages[1].content",
        ),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "prompt_null", "content"),
        ([{"role": "user", "content": 1}], "prompt_type", "content is not text but int"),
        ([{"role": "user", "content": []}], "prompt_empty", "content is an empty list"),
        ([{"role": "user", "content": [None]}], "prompt_null", "content[0]"),
        ([{"role": "user", "content": ["a"]}], "prompt_type", "'str'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "prompt_type", "'image_url'"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "prompt_null", "content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "prompt_type", "'x'"),
        ([{"role": "user", "content": "a\ud83d"}], "prompt_encoding", "character 1"),
        ([{"role": "us\udc00er", "content": "a"}], "prompt_encoding", "role"),
        ([{"role": "user", "content": "a", "k\ud800": 1}], "prompt_encoding", "a key of messages[0]"),
        ([{"role": "user", "content": "a", "day": date(2026, 1, 1)}], "prompt_type", "messages[0].day is of type date"),
        ([{"role": "user", "content": "a", "raw": [b"x"]}], "prompt_type", "messages[0].raw[0] is of type bytes"),
    ],
)
def test_bad_messages(messages: Any, code: str, where: str) -> None:
    found, message = code_of(messages)
    assert (found, where in message) == (code, True), message


def test_tools() -> None:
    assert check_tools(None) is None
    assert check_tools([]) == []
    assert check_tools([{"name": "f", "parameters": {"x": None}}]) == [{"name": "f", "parameters": {"x": None}}]
    bad: Any
    for bad in ({}, ["f"], [{"f": {1, 2}}]):
        with pytest.raises(RowError, match="tools") as failed:
            check_tools(bad)
        assert failed.value.code == "prompt_type"


def test_text() -> None:
    assert check_text("\u4f60", "x") == "\u4f60"
    for bad, code in [(None, "prompt_null"), (3, "prompt_type"), ("\ud800", "prompt_encoding")]:
        with pytest.raises(RowError) as failed:
            check_text(bad, "the prompt")
        assert failed.value.code == code
