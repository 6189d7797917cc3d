"""The columns of an input in which rows say sampling parameters themselves: their types, and what each row says."""

from collections.abc import Mapping

import pyarrow as pa
from pyarrow import types

from batchgen.errors import InputError, RowError
from batchgen.io.columns import Undecodable, cells, is_text, item_type
from batchgen.row_sampling import INTEGERS, LISTS, NUMBERS, sampling_text


def own_type(parameter: str) -> pa.DataType:
    """Of a column for values of the parameter."""
    if parameter in LISTS:
        return pa.list_(pa.string())
    return pa.float64() if parameter in NUMBERS else pa.int64() if parameter in INTEGERS else pa.string()


def check_own_type(parameter: str, type_: pa.DataType, where: str) -> None:
    """Raise InputError unless a column of `type_` can hold values of the parameter."""
    item = item_type(type_)
    if parameter in NUMBERS:
        wanted, is_good = "numbers", types.is_floating(type_) or types.is_integer(type_)
    elif parameter in INTEGERS:
        wanted, is_good = "integers", types.is_integer(type_)
    elif parameter in LISTS:
        wanted, is_good = "lists of texts", item is not None and (is_text(item) or types.is_null(item))
    else:
        wanted, is_good = "texts", is_text(type_)
    if not is_good and not types.is_null(type_):
        message = f"cannot hold {parameter} of sampling: {wanted} wanted, it holds {type_}"
        raise InputError(message, where=where, hint="cast the column")


def sampling_texts(batch: pa.RecordBatch, columns: Mapping[str, str]) -> list[str | RowError | None]:
    """Of each row what it says, as `sampling_text`, or why that cannot be; `columns`: parameter -> column."""
    if not columns:
        return [None] * batch.num_rows
    values = [cells(batch.column(column)) for column in columns.values()]
    return [_text(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)]


def _text(values: Mapping[str, object]) -> str | RowError | None:
    for name, value in values.items():
        if isinstance(value, Undecodable):
            return RowError("sampling", f"{name} holds bytes that are not UTF-8")
    try:
        return sampling_text(values)
    except RowError as error:
        return error
