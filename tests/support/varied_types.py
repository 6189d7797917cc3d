"""Files of a run as other programs would write them: the same values under other Arrow types."""

import pyarrow as pa
from support.run_damage import Change

VARIANTS = ("large", "dictionary", "view")


def retype(variant: str) -> Change:
    """Every text column, and for "large" every list of numbers too."""

    def change(table: pa.Table) -> pa.Table:
        for at, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                table = table.set_column(at, field.name, _text(table[at], variant))
            elif variant == "large" and pa.types.is_list(field.type):
                table = table.set_column(at, field.name, table[at].cast(pa.large_list(field.type.value_type)))
        return table

    return change


def _text(column: pa.ChunkedArray, variant: str) -> pa.ChunkedArray:
    if variant == "dictionary":
        return column.dictionary_encode()
    return column.cast(pa.large_string() if variant == "large" else pa.string_view())
