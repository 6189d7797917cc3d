"""The canonical bytes of rows: what a row hash is taken over. docs/formats.md defines them for other programs.

Everything is made of 32-bit little-endian words. A value is a head word and a payload:

    null                    head 0, no payload
    text, bytes             head 1 + number of bytes; the bytes, zero-padded to a whole number of words
    list, map               head 1 + number of elements; the elements, each a value (a map's: a key, then a value)
    struct                  head 1; its fields in order, each a value
    any other               head 1; the value's own bits, sign- or zero-extended to a whole number of words

The same value gives the same bytes however Arrow holds it: large or not, dictionary, view, fixed size, sliced.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rfc8785
from numpy.typing import NDArray

from batchgen.errors import InputError

Words = NDArray[np.uint32]
Parts = list[pa.LargeBinaryArray]  # without nulls, of one length n; value i is entry i of each, one after another
Type = str | list[Any]  # JSON: a name, or [name, arguments...]

_MAX_BATCH_BYTES = 32 << 20


class Cells(NamedTuple):
    """Values in order: value i is the next `lens[i]` of `words`."""

    words: Words  # [sum of lens]
    lens: NDArray[np.int64]  # [n]


@lru_cache(maxsize=1024)
def plain_type(type_: pa.DataType, column: str = "") -> pa.DataType:
    """The type under which a passthrough column is stored: Parquet gives it back exactly, in any reader.

    Dictionaries and string views are decoded, seconds become milliseconds, date64 becomes date32.
    Raises InputError for a type that Parquet cannot hold (list views, unions, intervals, structs without a field).
    """
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type, column)
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type, column)
    if pa.types.is_struct(type_) and type_.num_fields:
        return pa.struct([field.with_type(plain_type(field.type, column)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(plain_type(type_.key_type, column), plain_type(type_.item_type, column))
    if pa.types.is_large_list(type_):
        return pa.large_list(plain_type(type_.value_type, column))
    if _is_list(type_):
        return pa.list_(plain_type(type_.value_type, column))
    if pa.types.is_decimal(type_):
        return (pa.decimal128 if type_.precision <= 38 else pa.decimal256)(type_.precision, type_.scale)
    twin = {
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.time32("s"): pa.time32("ms"),
        pa.date64(): pa.date32(),
        pa.duration("s"): pa.duration("ms"),
    }.get(type_, type_)
    if pa.types.is_timestamp(type_) and type_.unit == "s":
        twin = pa.timestamp("ms", type_.tz)
    known = pa.types.is_timestamp(twin) or pa.types.is_time(twin) or pa.types.is_duration(twin)
    if known or _is_bytes(twin) or twin in _NAMES:
        return twin
    raise InputError(
        f"a column of type {type_} cannot be passed through", where=column, hint="leave it out of passthrough"
    )


def to_plain(array: pa.Array) -> pa.Array:
    """`array` under its `plain_type`. Casts leaves only: Arrow's casts of nested slices read what lies outside them."""
    plain = plain_type(array.type)
    if array.type == plain:
        return array
    if pa.types.is_dictionary(array.type):
        return to_plain(array.dictionary_decode())
    if isinstance(array.type, pa.BaseExtensionType):
        return to_plain(array.storage)
    if pa.types.is_map(plain):
        pairs = _list_of_pairs(array)
        keys, items = (to_plain(column) for column in pairs.flatten().flatten())
        return pa.MapArray.from_arrays(_offsets(pairs, pa.int32()), keys, items, plain, mask=pairs.is_null())
    if _is_list(plain):
        large = pa.types.is_large_list(plain)
        offsets = _offsets(array, pa.int64() if large else pa.int32())
        make = (pa.LargeListArray if large else pa.ListArray).from_arrays
        return make(offsets, to_plain(array.flatten()), plain, mask=array.is_null())
    if pa.types.is_struct(plain):
        # Flattened, so that a field is null where its struct is: what lies there may be no index of the dictionary.
        columns = [to_plain(column) for column in array.flatten()]
        return pa.StructArray.from_arrays(columns, fields=list(plain), mask=array.is_null())
    return array.cast(plain)


def plain_columns(table: pa.Table) -> pa.Table:
    """Every column of `table` under its `plain_type`."""
    types = [plain_type(field.type, field.name) for field in table.schema]
    if types == table.schema.types:
        return table
    columns = [pa.chunked_array(map(to_plain, c.chunks), type_) for c, type_ in zip(table.columns, types, strict=True)]
    return pa.table(columns, names=table.column_names, metadata=table.schema.metadata)


def type_json(type_: pa.DataType) -> Type:
    """The logical type as JSON: "int8", ["list", "string"], ["struct", [["a", "int8"]]], ["timestamp", "us", "utc"]."""
    type_ = plain_type(type_)
    if type_ in _NAMES:
        return _NAMES[type_]
    if _is_bytes(type_):
        return "string" if pa.types.is_string(type_) or pa.types.is_large_string(type_) else "binary"
    if pa.types.is_struct(type_):
        return ["struct", [[field.name, type_json(field.type)] for field in type_]]
    if pa.types.is_map(type_):
        return ["map", type_json(type_.key_type), type_json(type_.item_type)]
    if _is_list(type_):
        return ["list", type_json(type_.value_type)]
    if pa.types.is_decimal(type_):
        return ["decimal", type_.precision, type_.scale]
    if pa.types.is_timestamp(type_):
        return ["timestamp", type_.unit, "utc" if type_.tz else "local"]
    return ["duration" if pa.types.is_duration(type_) else "time", type_.unit]


def columns_json(schema: pa.Schema) -> list[list[Any]]:
    """[name, type] of each column in order."""
    return [[field.name, type_json(field.type)] for field in schema]


def schema_bytes(schema: pa.Schema) -> bytes:
    """RFC 8785 bytes of `columns_json`: what the schema tag of a row is the hash of."""
    return bytes(rfc8785.dumps(columns_json(schema)))


def encode_rows(batch: pa.RecordBatch, tag: bytes) -> list[bytes]:
    """Of each row `tag` (whole words), then each column's value."""
    parts = [_rectangle(np.tile(np.frombuffer(tag, "<u4"), (batch.num_rows, 1)))]
    for column in batch.columns:
        parts += _encode(column)
    rows: list[bytes] = _joined(parts).to_pylist()
    return rows


def batches(table: pa.Table) -> list[pa.RecordBatch]:
    """`table` cut into batches that take little memory to encode."""
    row_bytes = table.nbytes // max(table.num_rows, 1) + 1
    batched: list[pa.RecordBatch] = table.to_batches(max_chunksize=min(4096, max(1, _MAX_BATCH_BYTES // row_bytes)))
    return batched


def encode(array: pa.Array) -> Cells:
    """The canonical values of `array`."""
    values = _joined(_encode(array))
    ends = _buffer(values, 1, "<i8", len(values) + 1) // 4
    return Cells(_buffer(values, 2, "<u4", int(ends[-1])), np.diff(ends))


def _encode(array: pa.Array) -> Parts:
    if array.null_count == len(array):
        return [_rectangle(np.zeros((len(array), 1), np.uint32))]
    array = to_plain(array)
    type_ = array.type
    if pa.types.is_map(type_):
        array = _list_of_pairs(array)
        return _lists(array, [part for column in array.flatten().flatten() for part in _encode(column)])
    if _is_list(type_):
        return _lists(array, _encode(array.flatten()))
    if pa.types.is_struct(type_):
        return _structs(array)
    return _bytes(array) if _is_bytes(type_) else _fixed(array)


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    valid: NDArray[np.bool_] = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return valid


def _counts(lists: pa.Array) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _offsets(lists: pa.Array, type_: pa.DataType) -> pa.Array:
    """Of `lists.flatten()`."""
    return pa.array(_ends(_counts(lists)), type_)


def _list_of_pairs(maps: pa.MapArray) -> pa.ListArray:
    """list<struct<key, value>> over the same buffers."""
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(pairs.type), len(maps), maps.buffers()[:2], offset=maps.offset, children=[pairs]
    )


def _lists(array: pa.Array, elements: Parts) -> Parts:
    counts, values = _counts(array), _joined(elements)
    ends = _buffer(values, 1, "<i8", len(values) + 1)[_ends(counts)]
    return [_heads(np.where(_valid(array), counts + 1, 0)), _binary(ends, values.buffers()[2])]


def _structs(array: pa.StructArray) -> Parts:
    valid = _valid(array)
    fields = [part for column in array.filter(pa.array(valid)).flatten() for part in _encode(column)]
    values = _joined(fields)
    ends = _buffer(values, 1, "<i8", len(values) + 1)[_ends(valid)]
    return [_heads(valid), _binary(ends, values.buffers()[2])]


def _bytes(array: pa.Array) -> Parts:
    valid = _valid(array)
    data = array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array
    data = data.cast(pa.large_binary())
    if data.null_count:  # a null may lie over bytes of its own
        data = pc.fill_null(data, b"")
    sizes = np.diff(_buffer(data, 1, "<i8", len(data) + 1))
    padding = _ends(-sizes % 4)
    return [_heads(np.where(valid, sizes + 1, 0)), data, _binary(padding, pa.py_buffer(bytes(padding[-1])))]


def _fixed(array: pa.Array) -> Parts:
    type_, valid = array.type, _valid(array)
    if pa.types.is_boolean(type_):
        array = pc.fill_null(array, False).cast(pa.uint8())
    size = array.type.bit_width // 8
    if size < 4:
        kind = "<i" if pa.types.is_signed_integer(type_) else "<u"
        payload = _buffer(array, 1, f"{kind}{size}", len(array)).astype(f"{kind}4").view("<u4")[:, None]
    else:
        payload = _buffer(array, 1, "<u4", len(array), size // 4).reshape(len(array), size // 4)
    words = np.empty((len(array), 1 + payload.shape[1]), np.uint32)
    words[:, 0] = valid
    words[:, 1:] = payload
    if valid.all():
        return [_rectangle(words)]
    keep = np.repeat(valid[:, None], words.shape[1], axis=1)
    keep[:, 0] = True
    return [_binary(_ends(np.where(valid, 4 * words.shape[1], 4)), pa.py_buffer(words[keep]))]


def _heads(heads: NDArray[Any]) -> pa.LargeBinaryArray:
    if int(heads.max(initial=0)) >= 1 << 32:
        raise InputError("a single value of 4 GiB or 2^32 elements cannot be hashed")
    return _rectangle(heads.astype("<u4")[:, None])


def _rectangle(words: Words) -> pa.LargeBinaryArray:
    """Each row of `words` [n, k]."""
    return _binary(np.arange(len(words) + 1) * (4 * words.shape[1]), pa.py_buffer(words))


def _binary(ends: NDArray[np.int64], data: pa.Buffer | None) -> pa.LargeBinaryArray:
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), data])


def _ends(lens: NDArray[Any]) -> NDArray[np.int64]:
    """0, then where each of these lengths ends."""
    ends = np.zeros(len(lens) + 1, np.int64)
    np.cumsum(lens, out=ends[1:])
    return ends


def _joined(parts: Parts) -> pa.LargeBinaryArray:
    """Entry by entry. Arrow joins bytes many times as fast as numpy could gather them."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _buffer(array: pa.Array, index: int, dtype: str, count: int, width: int = 1) -> NDArray[Any]:
    """The `count` entries of a buffer that belong to `array`, which may be a slice; an entry is `width` items."""
    buffer = array.buffers()[index]
    if buffer is None or buffer.size == 0:  # Arrow leaves out the buffers of an empty array
        return np.zeros(count * width, dtype)
    return np.frombuffer(buffer, dtype, count * width, array.offset * width * np.dtype(dtype).itemsize)


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


_NAMES: dict[pa.DataType, str] = {
    pa.null(): "null",
    pa.bool_(): "bool",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date32(): "date",
} | {
    type_: str(type_)
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
