"""The items of one evaluation as a Parquet file in the run folder: a row for each sample that was scored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import RunError
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.writer import write_atomically
from batchgen.places import Place

FOLDER = "evals"
_SCHEMA = pa.schema(
    [
        pa.field("row_key", pa.string(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("score", pa.float64()),  # null: there is none, and `error` says why
        pa.field("value", pa.string()),  # what of the answer was looked at; of a choice the text that was chosen
        pa.field("error", pa.string()),
        pa.field("choice", pa.int32()),  # of a choice: which one
        pa.field("logprobs", pa.list_(pa.float64())),  # of a choice: the log-likelihood of each text
        pa.field("row_hash", pa.string(), nullable=False),  # of the row that was scored
    ]
)


@dataclass(frozen=True, slots=True)
class Item:
    """One scored sample."""

    row_key: str
    sample_index: int
    row_hash: str
    score: float | None
    value: str | None = None
    error: str | None = None
    choice: int | None = None
    logprobs: tuple[float, ...] | None = None


def items_file(run: Place, name: str) -> Place:
    """Where the items of the evaluation `name` are."""
    return run / FOLDER / f"{name}.parquet"


def write_items(run: Place, name: str, items: Sequence[Item], about: Mapping[str, Any]) -> Place:
    """Write the items over those of an earlier time; `about` is JSON for the file's metadata."""
    columns = {field.name: [getattr(item, field.name) for item in items] for field in _SCHEMA}
    metadata = {"batchgen.eval": json.dumps(about, sort_keys=True)}
    table = pa.table(columns, schema=_SCHEMA.with_metadata(metadata))
    held = BytesIO()
    pq.write_table(table, held)
    return write_beside(run, f"{name}.parquet", held.getvalue())


def write_beside(run: Place, name: str, data: bytes) -> Place:
    """A file of the folder of evaluations, as a whole. Raises RunError."""
    path = run / FOLDER / name
    try:
        if isinstance(path, Path):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, data)
        else:
            path.write(data)
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    return path


def read_items(run: Place, name: str) -> list[Item]:
    """The items of an evaluation, in input order. Raises RunError where it was not made, or not by this program."""
    path = items_file(run, name)
    try:
        with open_parquet_file(path) as file:
            rows = file.read().cast(_SCHEMA).to_pylist()
    except FileNotFoundError:
        raise RunError("has no such evaluation", where=str(path), hint=f"batchgen eval {run} makes it") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RunError(f"cannot be read: {str(error).splitlines()[0]}", where=str(path)) from error
    return [Item(**row | {"logprobs": None if row["logprobs"] is None else tuple(row["logprobs"])}) for row in rows]


def names_in(run: Place) -> list[str]:
    """The evaluations that the run holds."""
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    return sorted(file.name.removesuffix(".parquet") for file in folder.iterdir() if file.name.endswith(".parquet"))
