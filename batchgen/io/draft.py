"""A Parquet file on its way: under a hidden name until it is whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import RunError


class Draft:
    """Tables go in one after the other; the schema is that of the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Further metadata of the table's schema is the first table's."""
        self._file = self._file or pq.ParquetWriter(self._path, table.schema, compression="zstd", version="2.6")
        self._file.write_table(table.replace_schema_metadata(self._file.schema.metadata))

    def finish(self, metadata: dict[str, str]) -> None:
        """Add to the file's metadata, and close it. Raises RunError when there was no table."""
        if self._file is None:
            raise RunError("the run has no rows")
        self._file.add_key_value_metadata(metadata)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def draft_of(out: Path) -> Iterator[Draft]:
    """A file that takes the place of `out` when the block ends without an error. Raises RunError: cannot write."""
    path = out.with_name(f".{out.name}.tmp")
    draft = Draft(path)
    try:
        yield draft
        draft.close()
        os.replace(path, out)
    except OSError as error:
        raise RunError(f"cannot write: {error.strerror or error}", where=str(out)) from error
    finally:
        with suppress(OSError):
            draft.close()
        with suppress(OSError):
            path.unlink(missing_ok=True)
