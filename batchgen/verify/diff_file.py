"""The rows that differ, as a Parquet file that appears whole or not at all."""

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import RunError
from batchgen.io.manifest import FILE_NAME
from batchgen.verify.sorting import SCHEMA

_MARK = b"batchgen.diff"


class DiffFile:
    """Takes tables of SCHEMA, in order. A context; its file is there after a block that raised nothing.

    An earlier diff of that name is replaced, any other file is refused.
    """

    def __init__(self, path: Path, root_a: str | None, root_b: str | None) -> None:
        """Raises RunError when `path` cannot be such a file."""
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        _refuse(path)
        roots = {b"batchgen.root_a": root_a or "", b"batchgen.root_b": root_b or ""}
        try:
            self._writer = pq.ParquetWriter(
                self._temporary, SCHEMA.with_metadata({_MARK: "1", **roots}), compression="zstd"
            )
        except OSError as error:
            raise self._cannot(error) from error

    def write(self, table: pa.Table) -> None:
        """Raises RunError, as the end of the block does."""
        try:
            self._writer.write_table(table)
        except OSError as error:
            raise self._cannot(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._writer.close()
            if kind is None:
                os.replace(self._temporary, self._path)
        except OSError as failed:
            raise self._cannot(failed) from failed
        finally:
            self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    def _cannot(self, error: OSError) -> RunError:
        self._remove()
        return RunError(f"cannot write: {error.strerror or error}", where=str(self._path))


def _refuse(path: Path) -> None:
    if path.is_dir():
        raise RunError("is a folder", where=str(path), hint="name a file: --out FILE.parquet")
    folder = path.absolute().parent
    if any((place / FILE_NAME).exists() for place in (folder, folder.parent)):
        raise RunError("lies in a run folder, which holds its own files alone", where=str(path))
    if not path.exists():
        return
    try:
        ours = _MARK in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        ours = False
    if not ours:
        raise RunError(
            "is there already, and no earlier diff", where=str(path), hint="choose another name, or remove it"
        )
