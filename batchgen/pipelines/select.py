"""A finished run -> one Parquet file of some of its rows: those that a condition takes, each value once."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from batchgen.errors import InputError, RunError, nearest
from batchgen.io.canonical import batches, encode_rows, schema_bytes
from batchgen.io.draft import draft_of
from batchgen.io.hashing import ROW_HASH, MerkleTree
from batchgen.io.manifest import FILE_NAME, read_manifest
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.schema import as_written
from batchgen.io.selection import RowSelector
from batchgen.io.source_run import SourceFile, source_files
from batchgen.places import Place

MARK = "batchgen.selection"


@dataclass(frozen=True, slots=True)
class Selection:
    """What was taken, from what. All of it stands in the file's metadata under `batchgen.selection`."""

    source_root: str
    source_fingerprint: str  # of the job
    where: str | None
    dedup: tuple[str, ...]
    source_rows: int
    unselected: int  # rows for which the condition is not true
    repeated: int  # rows that have the values of an earlier one
    rows: int
    root: str  # of the rows that are left, as that of a run


def select(run: Place, out: Path, where: str | None = None, dedup: Sequence[str] = ()) -> Selection:
    """Write the rows of the finished run at `run` for which `where` is true to `out`; of those whose `dedup` columns
    are equal byte for byte, nulls too, the first.

    Every hash of the run is checked first. Rows keep their order, columns and row_hash. Raises InputError for a
    condition or a column that cannot be, or a run that is not what it was; RunError when `out` cannot be written.
    """
    _refuse(out)
    root, files = source_files(run, None, str(run))
    manifest = read_manifest(run)
    names = [name for name, _ in manifest.columns]
    for name in dedup:
        if name not in names:
            raise InputError(f"no column {name!r}", where="--dedup", hint=nearest(name, names))
    tree, seen, rows, unselected = MerkleTree(), set[bytes](), 0, 0
    with draft_of(out) as draft:
        for table in _chosen(files, where):
            unselected += table.unselected
            first = _first_of_each(table.rows, dedup, seen) if dedup else table.rows
            tree.add(rows, [bytes.fromhex(leaf) for leaf in first[ROW_HASH].to_pylist()])
            rows += first.num_rows
            draft.write(_without_keys(first))
        found = Selection(
            source_root=root,
            source_fingerprint=manifest.fingerprint["job_fingerprint"],
            where=where,
            dedup=tuple(dedup),
            source_rows=manifest.counts.rows,
            unselected=unselected,
            repeated=manifest.counts.rows - unselected - rows,
            rows=rows,
            root=tree.root(rows),
        )
        draft.finish({MARK: json.dumps(asdict(found))})
    return found


@dataclass(frozen=True, slots=True)
class _Chosen:
    rows: pa.Table
    unselected: int


def _chosen(files: Sequence[SourceFile], where: str | None) -> Iterator[_Chosen]:
    """The rows of each file that the condition takes."""
    selector = None if where is None else RowSelector([file.path for file in files], where, "--where")
    with selector or contextlib.nullcontext():
        for file in files:
            with open_parquet_file(file.path) as parquet:
                table = as_written(parquet.read()).replace_schema_metadata(parquet.schema_arrow.metadata)
            numbers = selector.rows(file.path, table.column_names) if selector else None
            rows = table if numbers is None else table.take(pa.array(numbers))
            yield _Chosen(rows, table.num_rows - rows.num_rows)


def _without_keys(table: pa.Table) -> pa.Table:
    """The metadata but for the row keys of the shard that the rows come from."""
    metadata = table.schema.metadata or {}
    return table.replace_schema_metadata({k: v for k, v in metadata.items() if k != b"batchgen.row_keys"})


def _first_of_each(table: pa.Table, columns: Sequence[str], seen: set[bytes]) -> pa.Table:
    """The rows whose values are not `seen`, which they become."""
    tag, keep = xxhash.xxh3_128_digest(schema_bytes(table.select(columns).schema)), []
    for batch in batches(table.select(columns)):
        for encoded in encode_rows(batch, tag):
            digest = xxhash.xxh3_128_digest(encoded)
            keep.append(digest not in seen)
            seen.add(digest)
    return table.filter(pa.array(keep, pa.bool_()))


def _refuse(out: Path) -> None:
    """A run folder holds its own files alone, and only a selection is written over."""
    folder = out.absolute().parent
    if any((place / FILE_NAME).exists() for place in (folder, folder.parent)):
        raise RunError("lies in a run folder, which holds its own files alone", where=str(out))
    if out.is_dir():
        raise RunError("is a folder", where=str(out), hint="name a file: --out FILE.parquet")
    if out.exists():
        try:
            ours = MARK.encode() in (pq.read_metadata(out).metadata or {})
        except (OSError, pa.ArrowException):
            ours = False
        if not ours:
            hint = "choose another name"
            raise RunError("is there already, and is no selection of rows", where=str(out), hint=hint)
