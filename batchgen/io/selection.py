"""A `where` condition -> the numbers of the rows of a Parquet file that it selects, the same ones every time."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from glob import escape
from types import TracebackType
from typing import Any, Self

import duckdb
import numpy as np
from numpy.typing import NDArray

from batchgen.errors import InputError, nearest
from batchgen.object_path import ObjectPath
from batchgen.places import Place

# Not marked as such by DuckDB, for only some of their forms ask the clock.
_CLOCKS = {"age", "ago"}


class RowSelector:
    """The condition of one entry of the inputs over the files of the entry, and nothing else can be read by it.

    A context. `where` is the condition's place in the job file.
    """

    def __init__(self, paths: Sequence[Place], condition: str, where: str) -> None:
        self._condition, self._where = condition, where
        self._connection = _connect(paths)

    def rows(self, path: Place, columns: list[str]) -> NDArray[np.int64]:
        """Numbers of the rows of `path` for which the condition is true, ascending; `columns` are all of the file's.

        Raises InputError for a condition that is no SQL, names an unknown column, holds a subquery, or depends on more
        than the row: chance, the clock, settings; and for column names that SQL cannot tell apart.
        """
        try:
            _check(self._connection, self._condition, columns, self._where)
            # Without hive_partitioning = false, a folder named lang=de would stand in for the column lang.
            table = "read_parquet(?, file_row_number = true, hive_partitioning = false)"
            query = f"SELECT file_row_number FROM {table} WHERE (\n{self._condition}\n)"
            rows = self._connection.execute(query, [escape(str(path))]).fetchnumpy()["file_row_number"]
        except duckdb.Error as error:
            hint = f"the condition is {self._condition!r}"
            raise InputError(_first_line(error), where=self._where, hint=hint) from None
        return np.sort(np.asarray(rows, np.int64))  # DuckDB owes nobody an order

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()


def _connect(paths: Sequence[Place]) -> duckdb.DuckDBPyConnection:
    """A connection that can read `paths` and nothing else. To make one takes longer than to read a small file."""
    connection = duckdb.connect(":memory:")
    for store in {path.store: path for path in paths if isinstance(path, ObjectPath)}.values():
        connection.register_filesystem(store.file_system)
    # DuckDB asks for leave twice: for the glob that it is given, and for the file that it finds.
    names = (name for path in paths for name in (str(path), escape(str(path))))
    allowed = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    connection.execute(f"""
        SET allowed_paths = [{allowed}];
        SET python_enable_replacements = false;
        SET temp_directory = '';
        SET TimeZone = 'UTC';
        SET enable_external_access = false;
        SET lock_configuration = true;
    """)
    return connection


def _check(connection: duckdb.DuckDBPyConnection, condition: str, columns: list[str], where: str) -> None:
    # Parsed without parentheses here and with them in the query: it must be one balanced expression to pass both.
    [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 FROM t WHERE {condition}"]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise InputError(f"no SQL condition: {tree['error_message']}", where=where, hint=f"it is {condition!r}")
    impure = _impure_functions()
    known = {name.lower() for name in columns}
    if "file_row_number" in known:
        message = "cannot be used on a file with a column named file_row_number"
        raise InputError(message, where=where, hint="rename the column: rows are counted under this name")
    for node in _nodes(tree["statements"][0]["node"]["where_clause"]):
        match node.get("class"):
            case "LAMBDA":
                known |= {name.lower() for child in _nodes(node["lhs"]) for name in child.get("column_names", [])}
            case "COLUMN_REF" if node["column_names"][0].lower() not in known:
                name = node["column_names"][0]
                raise InputError(f"no column {name!r} in the input", where=where, hint=nearest(name, columns))
            case "COLUMN_REF" if alike := _alike(node["column_names"][0], columns):
                message = (
                    f"columns {' and '.join(map(repr, alike))} differ only in case, and SQL cannot tell them apart"
                )
                raise InputError(message, where=where, hint="rename one")
            case "FUNCTION" if node["function_name"].lower() in impure:
                message = f"{node['function_name']}() depends on more than the row"
                raise InputError(message, where=where, hint="a condition must select the same rows every time")
            case "SUBQUERY":
                raise InputError("a condition cannot hold a subquery", where=where)


def _alike(name: str, columns: list[str]) -> list[str]:
    """The columns among which `name` cannot choose: DuckDB reads k for K, and calls the second of them k_1."""
    for spelt, times in Counter(column.lower() for column in columns).items():
        if times > 1 and re.fullmatch(re.escape(spelt) + r"(_\d+)*", name.lower()):
            return [column for column in columns if column.lower() == spelt]
    return []


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a parsed query, parents first."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for child in tree:
            yield from _nodes(child)


@cache
def _impure_functions() -> set[str]:
    """Functions of which no form is a function of its arguments alone."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute("""
            SELECT function_name FROM duckdb_functions() WHERE function_type = 'scalar'
            GROUP BY function_name HAVING NOT bool_or(stability = 'CONSISTENT')
        """).fetchall()
    return {name.lower() for (name,) in rows} | _CLOCKS


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0]
