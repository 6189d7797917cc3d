"""Files that appear whole or not at all."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import RunError
from batchgen.object_path import StoreError
from batchgen.places import Place

ROW_KEYS = b"batchgen.row_keys"  # Parquet metadata: the row keys of a shard in order, as JSON
TEMPORARY = re.compile(
    r"\.(part-\d{5,}\.parquet|manifest\.json|job\.yaml|report\.html|probe-\d{3,}\.json)\.tmp"
)  # what a killed write leaves

_ROW_GROUP_ROWS = 16_384
_SMALL_BYTES = 128 << 10
_REPEATED = (  # columns of few values; to put others in a dictionary makes files larger and slower to read
    "sample_index",
    "status",
    "error_code",
    "error_message",
    "finish_reason",
    "stop_reason",
    "num_prompt_tokens",
    "num_output_tokens",
    "params_hash",
)


@contextlib.contextmanager
def writing(path: Place) -> Iterator[None]:
    """Any failure of the file system becomes a RunError that names `path`."""
    try:
        yield
    except StoreError:  # names it already, and says more
        raise
    except OSError as error:
        raise RunError(
            f"cannot write: {error.strerror or error}",
            where=str(path),
            hint="what is committed is valid; once this is mended, the same command goes on from there",
        ) from error


def write_whole(path: Place, data: bytes) -> None:
    """Replace `path`, wherever it is, by `data`. Raises RunError."""
    if isinstance(path, Path):
        write_atomically(path, data)
        return
    with writing(path):
        path.write(data)


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace `path` by `data`: a reader sees the old bytes or the new, also after a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def shard_bytes(table: pa.Table, keys: bytes) -> memoryview:
    """One shard's rows as a Parquet file. `keys`, from `row_keys_json`, let verify name rows that went missing.

    A small table is not compressed: starting zstd for each column would take most of the time of reading it.
    """
    metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({**metadata, ROW_KEYS: keys}),
        sink,
        compression="none" if table.nbytes < _SMALL_BYTES else "zstd",
        use_dictionary=[name for name in _REPEATED if name in table.column_names],
        write_statistics=["row_key"],
        version="2.6",  # keeps nanoseconds and uint32
        row_group_size=_ROW_GROUP_ROWS,
    )
    return memoryview(sink.getvalue())


def row_keys_json(row_keys: Sequence[str]) -> bytes:
    """The row keys of a shard in order, one for all samples of a row, as they stand in the file's metadata."""
    return json.dumps(row_keys, ensure_ascii=False, separators=(",", ":")).encode()
