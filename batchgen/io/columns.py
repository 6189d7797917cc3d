"""Arrow columns of the input -> Python values: what counts as text, chats or token ids, and how a cell is read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from batchgen.errors import InputError


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A cell that holds bytes that are not UTF-8. `value` has a lone surrogate in the place of each bad byte."""

    value: Any


def check_type(role: str, type_: pa.DataType, where: str) -> None:
    """Raise InputError unless a column of `type_` can be a `role`: row_key or a name of spec.Columns."""
    item = item_type(type_)
    good = {
        "row_key": is_text(type_) or types.is_integer(type_),
        "prompt": is_text(type_),
        "messages": item is not None and types.is_struct(item) and {"role", "content"} <= set(item.names),
        "tools": item is not None and types.is_struct(item),
        "prompt_token_ids": item is not None and types.is_integer(item),
    }
    wanted = {
        "row_key": "text or integers",
        "prompt": "text",
        "messages": "a list of structs with role and content",
        "tools": "a list of structs",
        "prompt_token_ids": "a list of integers",
    }
    if not good[role] and not types.is_null(type_):
        raise InputError(f"cannot be the {role} column: {wanted[role]} wanted, it holds {type_}", where=where)
    check_json_type(role, type_, where)


def is_text(type_: pa.DataType) -> bool:
    """Is a value of this type text?"""
    if types.is_dictionary(type_):
        return is_text(type_.value_type)
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def item_type(type_: pa.DataType) -> pa.DataType | None:
    """Of what a list is a list; None of another type."""
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return type_.value_type
    return None


def check_json_type(role: str, type_: pa.DataType, where: str) -> None:
    """Raise InputError for a type whose values JSON cannot hold, at any depth."""
    for part in _parts(type_):
        if types.is_temporal(part) or not (is_text(part) or types.is_primitive(part) or types.is_null(part)):
            raise InputError(f"{part} inside a {role} column has no JSON form", where=where)


def check_castable(type_: pa.DataType, where: str) -> None:
    """Raise InputError for types that pyarrow casts to other values than they hold (list views lose elements)."""
    for part in _parts(type_):
        if types.is_list_view(part) or types.is_large_list_view(part):
            raise InputError("list views cannot be passed through", where=where, hint="write the column as a list")


def has_text(type_: pa.DataType) -> bool:
    """Does a value of this type hold text, at any depth?"""
    return any(is_text(part) for part in _parts(type_))


def cells(array: pa.Array) -> list[Any]:
    """The Python value of each cell; an Undecodable where one holds bytes that are not UTF-8."""
    try:
        values: list[Any] = array.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_cell(array.slice(index, 1)) for index in range(len(array))]


def without_nulls(value: Any) -> Any:
    """`value` less the null fields of its structs: Arrow makes them up where two rows have different fields."""
    if isinstance(value, dict):
        return {name: without_nulls(child) for name, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(child) for child in value]
    return value


def chat(messages: list[Any]) -> list[Any]:
    """Messages less made-up nulls; role and content stay, for there a null is the data's own."""
    return [
        message
        and {
            name: without_nulls(value)
            for name, value in message.items()
            if value is not None or name in ("role", "content")
        }
        for message in messages
    ]


def _cell(array: pa.Array) -> Any:
    try:
        return array.to_pylist()[0]
    except UnicodeDecodeError:
        return Undecodable(_decode(array.cast(_as_bytes(array.type)).to_pylist()[0]))


def _decode(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {name: _decode(child) for name, child in value.items()}
    return [_decode(child) for child in value] if isinstance(value, list) else value


def _as_bytes(type_: pa.DataType) -> pa.DataType:
    """`type_` with bytes in the place of text."""
    if is_text(type_):
        return pa.large_binary()
    if types.is_struct(type_):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in type_])
    item = item_type(type_)
    return type_ if item is None else pa.large_list(_as_bytes(item))


def _parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    """The types at the leaves of `type_`; of a type that nests in a way not known here, itself."""
    item = item_type(type_)
    if types.is_struct(type_):
        for field in type_:
            yield from _parts(field.type)
    elif types.is_map(type_):
        yield from _parts(type_.key_type)
        yield from _parts(type_.item_type)
    elif item is not None:
        yield from _parts(item)
    else:
        yield type_
