"""The canonical bytes of a row, one value after another with struct.pack: what batchgen.io.canonical is held to."""

import decimal
import struct

import pyarrow as pa
import rfc8785
import xxhash

from batchgen.io.canonical import columns_json

_FORMATS = {
    "bool": "<I", "int8": "<i", "int16": "<i", "int32": "<i", "int64": "<q", "uint8": "<I", "uint16": "<I",
    "uint32": "<I", "uint64": "<Q", "float": "<f", "double": "<d",
}  # fmt: skip


def value_bytes(value: pa.Scalar) -> bytes:
    """A head word and a payload, as docs/formats.md says."""
    if not value.is_valid:
        return struct.pack("<I", 0)
    if isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar):
        return value_bytes(value.value)
    if isinstance(value, pa.MapScalar):
        pairs = [(pair["key"], pair["value"]) for pair in value.values]
        return struct.pack("<I", len(pairs) + 1) + b"".join(value_bytes(k) + value_bytes(v) for k, v in pairs)
    if isinstance(value, pa.ListScalar):
        return struct.pack("<I", len(value.values) + 1) + b"".join(map(value_bytes, value.values))
    if isinstance(value, pa.StructScalar):
        return struct.pack("<I", 1) + b"".join(value_bytes(value[i]) for i in range(len(value.type)))
    if isinstance(value, pa.BinaryScalar):
        data: bytes = value.as_buffer().to_pybytes()
        return struct.pack("<I", len(data) + 1) + data + b"\0" * (-len(data) % 4)
    return struct.pack("<I", 1) + _bits(value)


def _bits(value: pa.Scalar) -> bytes:
    type_ = value.type
    if pa.types.is_decimal(type_):
        with decimal.localcontext(prec=100):
            unscaled = int(value.as_py().scaleb(type_.scale))
        return unscaled.to_bytes(16 if type_.precision <= 38 else 32, "little", signed=True)
    if pa.types.is_date64(type_):
        return struct.pack("<i", value.value // 86_400_000)
    if pa.types.is_temporal(type_):
        number = value.value * (1000 if getattr(type_, "unit", "") == "s" else 1)
        return struct.pack("<i" if pa.types.is_date32(type_) or pa.types.is_time32(type_) else "<q", number)
    if pa.types.is_float16(type_):
        return struct.pack("<eH", value.as_py(), 0)
    return struct.pack(_FORMATS[str(type_)], value.as_py())


def row_leaves(table: pa.Table) -> list[bytes]:
    """The leaf of each row; `table` has no column row_hash."""
    tag = xxhash.xxh3_128_digest(rfc8785.dumps(columns_json(table.schema)))
    return [
        xxhash.xxh3_128_digest(tag + b"".join(value_bytes(table[name][at]) for name in table.column_names))
        for at in range(table.num_rows)
    ]
