"""A Parquet file, opened wherever it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.places import Place

_ONE_REQUEST_BYTES = 32 << 20  # an object up to this size is fetched whole: a shard has some twenty columns to ask for
_PIECE_BYTES = 8 << 20  # of a column of a larger one, for each request


@contextmanager
def open_parquet_file(path: Place, buffer_size: int = 0, **options: Any) -> Iterator[pq.ParquetFile]:
    """`options` are those of pyarrow's ParquetFile; `buffer_size` is for files of this machine.

    Raises OSError and pa.ArrowException.
    """
    if isinstance(path, Path):
        with pq.ParquetFile(path, buffer_size=buffer_size, **options) as file:
            yield file
        return
    with path.open() as stream:
        source = pa.BufferReader(stream.readall()) if stream.size <= _ONE_REQUEST_BYTES else pa.PythonFile(stream, "r")
        with source, pq.ParquetFile(source, buffer_size=_PIECE_BYTES, **options) as file:
            yield file
