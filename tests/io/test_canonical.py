import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from support.arrow_tables import tables
from support.scalar_rows import row_leaves

from batchgen.errors import InputError
from batchgen.io.canonical import columns_json, encode, plain_type, to_plain, type_json
from batchgen.io.hashing import leaves


def one(value: object, type_: pa.DataType) -> bytes:
    """The canonical bytes of one value."""
    return encode(pa.array([value], type_)).words.tobytes()


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@given(tables())
@settings(max_examples=400, deadline=None)
def test_the_vectorised_bytes_are_those_of_the_scalar_twin(table: pa.Table) -> None:
    assert leaves(table) == row_leaves(table)


@given(tables())
@settings(max_examples=100, deadline=None)
def test_the_stored_type_hashes_like_the_type_of_the_input(table: pa.Table) -> None:
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    stored = pa.table([to_plain(column) for column in batch.columns], names=table.column_names)
    assert leaves(stored) == leaves(table)
    assert columns_json(stored.schema) == columns_json(table.schema)
    assert [field.type for field in stored.schema] == [plain_type(field.type) for field in stored.schema]


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (None, pa.int64(), words(0)),
        (-1, pa.int8(), words(1, 0xFFFFFFFF)),
        (2**64 - 1, pa.uint64(), words(1, 0xFFFFFFFF, 0xFFFFFFFF)),
        (True, pa.bool_(), words(1, 1)),
        ("", pa.string(), words(1)),
        ("abcde", pa.string(), words(6) + b"abcde\0\0\0"),
        ([], pa.list_(pa.int32()), words(1)),
        ([7, None], pa.list_(pa.int32()), words(3, 1, 7, 0)),
        ([None, False, True], pa.list_(pa.bool_()), words(4, 0, 1, 0, 1, 1)),
        ([None, -1], pa.list_(pa.int16()), words(3, 0, 1, 0xFFFFFFFF)),
        ([None, "abcde", "abcd"], pa.list_(pa.string()), words(4, 0, 6) + b"abcde\0\0\0" + words(5) + b"abcd"),
        ({"a": None}, pa.struct([("a", pa.int32())]), words(1, 0)),
        (None, pa.struct([("a", pa.int32())]), words(0)),
        ([("k", 1)], pa.map_(pa.string(), pa.int32()), words(2, 2) + b"k\0\0\0" + words(1, 1)),
        (1, pa.timestamp("s"), words(1, 1000, 0)),
    ],
)
def test_the_bytes_of_a_value(value: object, type_: pa.DataType, expected: bytes) -> None:
    assert one(value, type_) == expected


@pytest.mark.parametrize(
    ("a", "b", "type_"),
    [
        (None, "", pa.string()),
        (None, [], pa.list_(pa.int8())),
        ([None], [], pa.list_(pa.null())),
        ("a", "a\0", pa.string()),
        (None, {"a": None}, pa.struct([("a", pa.int8())])),
    ],
)
def test_values_that_look_alike_have_other_bytes(a: object, b: object, type_: pa.DataType) -> None:
    assert one(a, type_) != one(b, type_)


def test_columns_cannot_flow_into_each_other() -> None:
    assert leaves(pa.table({"a": ["x"], "b": ["yz"]})) != leaves(pa.table({"a": ["xy"], "b": ["z"]}))


@pytest.mark.parametrize("bits", [0x7FA00001, 0xFFC12345, 0x80000000, 0x00000001])
def test_float_bits_are_kept(bits: int) -> None:
    array = pa.array(np.array([bits], np.uint32).view(np.float32))
    assert encode(array).words.tolist() == [1, bits]


def test_bytes_under_a_null_are_not_seen() -> None:
    hidden = pa.StringArray.from_buffers(2, pa.array([0, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"abcd"),
                                         pa.py_buffer(b"\x02"))  # fmt: skip
    assert hidden.to_pylist() == [None, "d"]
    assert encode(hidden).words.tolist() == encode(pa.array([None, "d"])).words.tolist()


@pytest.mark.parametrize(
    "twin",
    [
        pa.array(["a", None, "bc", "a"]).dictionary_encode(),
        pa.array(["a", None, "bc", "a"], pa.large_string()),
        pa.array(["a", None, "bc", "a"], pa.string_view()),
        pa.array(["z", "a", None, "bc", "a"])[1:],
    ],
    ids=["dictionary", "large", "view", "slice"],
)
def test_how_arrow_holds_text_cannot_be_seen(twin: pa.Array) -> None:
    assert leaves(pa.table({"a": twin})) == leaves(pa.table({"a": ["a", None, "bc", "a"]}))


def test_the_names_and_types_of_columns_count() -> None:
    tables = [
        pa.table({"a": pa.array([1], pa.int32())}),
        pa.table({"b": pa.array([1], pa.int32())}),
        pa.table({"a": pa.array([1], pa.uint32())}),
        pa.table({"a": pa.array([1], pa.date32())}),
    ]
    assert len({leaves(table)[0] for table in tables}) == len(tables)


@pytest.mark.parametrize(
    "type_", [pa.list_view(pa.int8()), pa.struct([]), pa.month_day_nano_interval(), pa.list_(pa.struct([]))], ids=str
)
def test_a_type_that_parquet_cannot_hold_is_refused(type_: pa.DataType) -> None:
    with pytest.raises(InputError, match="answer: a column of type"):
        plain_type(type_, "answer")


def test_type_json() -> None:
    type_ = pa.struct([("a", pa.list_(pa.decimal128(5, 2))), ("b", pa.map_(pa.string(), pa.timestamp("us", "UTC")))])
    assert type_json(type_) == [
        "struct",
        [["a", ["list", ["decimal", 5, 2]]], ["b", ["map", "string", ["timestamp", "us", "utc"]]]],
    ]


def test_a_dictionary_under_a_null_struct_may_hold_any_index() -> None:
    """Arrow leaves an index into nothing there; the value is null all the same."""
    empty = pa.DictionaryArray.from_arrays(pa.array([0], pa.int16()), pa.array([], pa.string()), safe=False)
    column = pa.StructArray.from_arrays([empty], names=["f"], mask=pa.array([True]))
    assert to_plain(column).to_pylist() == [None]
    assert leaves(pa.table({"c": column})) == leaves(pa.table({"c": pa.array([None], pa.struct({"f": pa.string()}))}))
