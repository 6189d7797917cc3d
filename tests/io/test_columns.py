"""Columns: which Arrow types may play which role, and what a cell becomes."""

import pyarrow as pa
import pytest
from support.jobs import text_of_bytes

from batchgen.errors import InputError
from batchgen.io.columns import Undecodable, cells, chat, check_castable, check_type, has_text, without_nulls

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.dictionary(pa.int32(), pa.large_string()))])
PARTS = pa.struct([("role", pa.string()), ("content", pa.list_(pa.struct([("type", pa.string())])))])


@pytest.mark.parametrize(
    ("role", "type_"),
    [
        ("row_key", pa.uint64()),
        ("row_key", pa.string_view()),
        ("prompt", pa.dictionary(pa.int8(), pa.string())),
        ("messages", pa.list_(MESSAGE)),
        ("messages", pa.large_list(PARTS)),
        ("messages", pa.null()),
        ("tools", pa.list_(pa.struct([("strict", pa.bool_()), ("x", pa.null()), ("y", pa.float64())]))),
        ("prompt_token_ids", pa.list_(pa.uint16(), 4)),
    ],
)
def test_good_types(role: str, type_: pa.DataType) -> None:
    check_type(role, type_, "here")


@pytest.mark.parametrize(
    ("role", "type_"),
    [
        ("row_key", pa.bool_()),
        ("row_key", pa.binary()),
        ("prompt", pa.binary()),
        ("prompt", pa.list_(pa.string())),
        ("messages", MESSAGE),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.date32())]))),
        ("tools", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.binary()))]))),
        ("prompt_token_ids", pa.list_(pa.bool_())),
        ("prompt_token_ids", pa.list_view(pa.int32())),
    ],
)
def test_bad_types(role: str, type_: pa.DataType) -> None:
    with pytest.raises(InputError) as caught:
        check_type(role, type_, "here")
    assert str(caught.value).startswith("here: ")


def test_list_views_are_refused_at_any_depth() -> None:
    check_castable(pa.list_(pa.struct([("x", pa.int8())])), "here")
    with pytest.raises(InputError, match="list views"):
        check_castable(pa.struct([("x", pa.list_(pa.list_view(pa.int8())))]), "here")


def test_has_text() -> None:
    assert has_text(pa.list_(pa.struct([("x", pa.dictionary(pa.int8(), pa.string()))])))
    assert not has_text(pa.list_(pa.struct([("x", pa.binary())])))


def test_a_bad_cell_keeps_its_bytes_and_its_neighbours() -> None:
    texts = text_of_bytes([b"a", b"b\xff", b"c"])
    assert cells(texts) == ["a", Undecodable("b\udcff"), "c"]
    assert cells(texts.dictionary_encode()) == cells(texts)
    structs = pa.StructArray.from_arrays([texts, pa.array([1, 2, 3])], ["content", "n"])
    lists = pa.ListArray.from_arrays([0, 1, 3], structs)
    bad = Undecodable([{"content": "b\udcff", "n": 2}, {"content": "c", "n": 3}])
    assert cells(lists) == [[{"content": "a", "n": 1}], bad]


def test_nulls_go_from_structs_and_stay_in_lists() -> None:
    value = [{"a": None, "b": [None, {"c": None, "d": 0}], "e": False, "f": ""}, None]
    assert without_nulls(value) == [{"b": [None, {"d": 0}], "e": False, "f": ""}, None]


def test_the_content_of_a_message_may_be_null() -> None:
    messages = [{"role": None, "content": None, "name": None, "tool_calls": [{"id": None}]}, None]
    assert chat(messages) == [{"role": None, "content": None, "tool_calls": [{}]}, None]
