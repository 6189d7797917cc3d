"""Do the files of shards hold what the manifest says? Thousands of rows at a time, so that small files are cheap."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from batchgen.errors import BatchgenError
from batchgen.io.canonical import columns_json, plain_columns
from batchgen.io.finding import Finding
from batchgen.io.hashing import ROW_HASH, leaves, shard_digest
from batchgen.io.manifest import Manifest, ShardRecord, Tally, part_name
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.row_rules import RowRules
from batchgen.io.shard_faults import KeysOf, Suspect, other_part
from batchgen.io.writer import row_keys_json
from batchgen.object_path import StoreError
from batchgen.places import Place

_GROUP_ROWS = 4096  # enough to make the cost of a group small, and few enough to stay in the cache
_GROUP_BYTES = 32 << 20  # of decoded rows
_COUNTED = ["finish_reason", "num_prompt_tokens", "num_output_tokens", ROW_HASH]
_UNREADABLE = (pa.ArrowException, BatchgenError, OSError, ValueError, MemoryError)

CheckedShard = tuple[ShardRecord, list[bytes], list[Finding]]


def check_shards(
    run: Place, manifest: Manifest, shards: Iterable[ShardRecord], keys_of: KeysOf | None = None
) -> Iterator[CheckedShard]:
    """(shard, leaves, findings) of each shard in order: everything about it, recomputed from its file.

    No findings: every value is as it was committed, and every row keeps the `RowRules` of the job. Otherwise the
    leaves are of what the file holds now, none if it is torn. `keys_of` reads row keys from the input; it is asked only
    to name the rows of a file that does not tell. Memory is that of a few thousand rows, and the leaves of a shard.
    Raises RunError when the manifest does not say what rows must be like, or when an object store fails.
    """
    checker = _Checker(run, manifest, keys_of)
    for shard in shards:
        yield from checker.take(shard)
    yield from checker.flush()


def check_shard(
    run: Place, manifest: Manifest, shard: ShardRecord, keys_of: KeysOf | None = None
) -> tuple[list[bytes], list[Finding]]:
    """(leaves, findings) of one shard, as from `check_shards`; for many that one is several times as fast."""
    [(_, found, wrong)] = check_shards(run, manifest, [shard], keys_of)
    return found, wrong


@dataclass(slots=True)
class _Loaded:
    """A shard's file: torn, or its rows, or of a large one the leaves and the columns that are judged."""

    shard: ShardRecord
    torn: str = ""
    rows: pa.Table | None = None
    size: int = 0  # bytes of `rows`
    judged: pa.Table | None = None
    leaves: list[bytes] = field(default_factory=list)

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Of the file. Asked of a table, it is copied."""
        found: Mapping[bytes, bytes] = (self.judged.schema.metadata if self.judged is not None else None) or {}
        return found

    def fits(self, other: "_Loaded") -> bool:
        """Whether both can be one table: columns that count as equal may be of several types."""
        if self.rows is None or other.rows is None:
            return bool(self.torn and other.torn)
        return bool(self.rows.schema.equals(other.rows.schema))


class _Checker:
    """Holds the files that were read and are still to be judged, together."""

    def __init__(self, run: Place, manifest: Manifest, keys_of: KeysOf | None) -> None:
        self._run, self._manifest, self._keys_of = run, manifest, keys_of
        self._rules = RowRules.of(manifest)
        self._judged = [*self._rules.columns, *_COUNTED]
        self._columns = [list(column) for column in manifest.columns]
        self._schema: pa.Schema | None = None  # of the latest file whose columns were right
        self._held: list[_Loaded] = []
        self._rows = self._bytes = 0

    def take(self, shard: ShardRecord) -> Iterator[CheckedShard]:
        loaded = self._load(shard)
        if self._held and not loaded.fits(self._held[0]):
            yield from self.flush()
        self._held.append(loaded)
        if loaded.rows is not None:
            self._rows += loaded.rows.num_rows
            self._bytes += loaded.size
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES or loaded.leaves:
            yield from self.flush()

    def flush(self) -> Iterator[CheckedShard]:
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        self._hash([loaded for loaded in held if loaded.rows is not None])
        sound = self._sound([loaded for loaded in held if not loaded.torn])
        for loaded in held:
            suspect = Suspect(self._manifest, loaded.shard, self._keys_of)
            if loaded.torn:
                yield loaded.shard, [], suspect.torn(loaded.torn)
            elif loaded.shard.index in sound:
                yield loaded.shard, loaded.leaves, []
            else:
                table = loaded.judged
                assert table is not None
                found = suspect.faults(table, loaded.leaves, self._rules, loaded.metadata)
                yield loaded.shard, loaded.leaves, found

    def _load(self, shard: ShardRecord) -> _Loaded:
        path = self._run / part_name(shard.index)
        try:
            if isinstance(path, Path) and not stat.S_ISREG(os.lstat(path).st_mode):
                return _Loaded(shard, "is no file of its own but a link, a folder or a device")
            with _opened(path) as file:
                return self._read(shard, file)
        except FileNotFoundError:
            return _Loaded(shard, "there is no such file")
        except StoreError:  # says nothing about the rows: they must not be made again for it
            raise
        except _UNREADABLE as error:
            return _Loaded(shard, _reason(error))

    def _read(self, shard: ShardRecord, file: pq.ParquetFile) -> _Loaded:
        rows, size = file.metadata.num_rows, _decoded_bytes(file.metadata)
        if rows <= _GROUP_ROWS and size <= _GROUP_BYTES:
            table = file.read(use_threads=False)
            return (
                _Loaded(shard, rows=table, size=size)
                if self._has_columns(table.schema)
                else _Loaded(shard, _OTHER_COLUMNS)
            )
        if not self._has_columns(file.schema_arrow):
            return _Loaded(shard, _OTHER_COLUMNS)
        loaded, judged = _Loaded(shard), []
        batch_rows = min(_GROUP_ROWS, max(1, rows * _GROUP_BYTES // size))
        for batch in file.iter_batches(batch_rows, use_threads=False):
            table = pa.Table.from_batches([batch])
            loaded.leaves += leaves(table)
            judged.append(plain_columns(table.select(self._judged)))
        loaded.judged = pa.concat_tables(judged)
        return loaded

    def _has_columns(self, schema: pa.Schema) -> bool:
        if self._schema is None or not schema.equals(self._schema):
            if columns_json(schema) != self._columns:
                return False
            self._schema = schema
        return True

    def _hash(self, files: Sequence[_Loaded]) -> None:
        """The leaves of several files at once; of each alone when one of them has a value that cannot be hashed."""
        tables = [loaded.rows for loaded in files]
        try:
            found = leaves(pa.concat_tables(tables).combine_chunks()) if tables else []
        except _UNREADABLE as error:
            for loaded in files:
                if len(files) > 1:
                    self._hash([loaded])
                else:
                    loaded.torn = _reason(error)
            return
        at = 0
        for loaded in files:
            assert loaded.rows is not None
            loaded.leaves = found[at : at + loaded.rows.num_rows]
            loaded.judged, at = plain_columns(loaded.rows.select(self._judged)), at + loaded.rows.num_rows

    def _sound(self, files: Sequence[_Loaded]) -> set[int]:
        """The indices of the shards of which everything holds."""
        if not files:
            return set()
        table = pa.concat_tables([loaded.judged for loaded in files]).combine_chunks()
        try:
            keys = table["row_key"].to_pylist()
            if None in keys:
                raise ValueError("a row key is null")
        except ValueError:  # which file is it?
            return set().union(*(self._sound([loaded]) for loaded in files)) if len(files) > 1 else set()
        sizes = [len(loaded.leaves) for loaded in files]
        bounds = np.cumsum([0, *sizes])
        broken = self._rules.broken(table, keys, sizes) | ~_hashes_equal(table[ROW_HASH], files)
        faulty = _sums(broken, bounds)
        tallies = _tallies(table, bounds)
        n, sound = self._manifest.plan.n, set()
        for loaded, (start, stop), faults, tally in zip(files, pairwise(bounds), faulty, tallies, strict=True):
            shard = loaded.shard
            holds = (
                not faults
                and stop - start == (shard.stop - shard.start) * n
                and shard_digest(loaded.leaves) == shard.digest
                and tally == shard.tally
                and hashlib.sha256(row_keys_json(keys[start:stop:n])).hexdigest() == shard.keys_digest
                and not other_part(self._manifest, loaded.metadata)
            )
            if holds:
                sound.add(shard.index)
        return sound


@contextmanager
def _opened(path: Place) -> Iterator[pq.ParquetFile]:
    if isinstance(path, Path):
        with pa.OSFile(str(path)) as source, pq.ParquetFile(source) as file:
            yield file
    else:
        with open_parquet_file(path) as file:
            yield file


_OTHER_COLUMNS = "has other columns than the manifest says"


def _reason(error: BaseException) -> str:
    return f"cannot be read: {(str(error) or type(error).__name__).splitlines()[0].rstrip('.')}"


def _decoded_bytes(metadata: pq.FileMetaData) -> int:
    """About; at least 1."""
    size: int = 1 + sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    return size


def _hashes_equal(column: pa.ChunkedArray, files: Sequence[_Loaded]) -> NDArray[np.bool_]:
    """[rows]: whether row_hash is the leaf in hex."""
    text = b"".join(leaf for loaded in files for leaf in loaded.leaves).hex().encode()
    offsets = pa.py_buffer(np.arange(0, len(text) + 1, 32, dtype=np.int32))
    leaves_now = pa.StringArray.from_buffers(len(text) // 32, offsets, pa.py_buffer(text))
    equal: NDArray[np.bool_] = pc.fill_null(pc.equal(column, leaves_now), False).to_numpy()
    return equal


def _sums(values: NDArray[np.generic], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of values[bounds[i] : bounds[i + 1]]."""
    ends = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    sums: NDArray[np.int64] = ends[bounds[1:]] - ends[bounds[:-1]]
    return sums


def _tallies(table: pa.Table, bounds: NDArray[np.int64]) -> list[Tally]:
    """`Tally.of` each stretch of rows."""
    reasons = [pc.fill_null(pc.equal(table["finish_reason"], name), False) for name in ("stop", "length", "error")]
    tokens = [pc.fill_null(table[name], 0) for name in ("num_prompt_tokens", "num_output_tokens")]
    sums = [_sums(column.to_numpy(), bounds).tolist() for column in (*reasons, *tokens)]
    return [Tally(*counts) for counts in zip(np.diff(bounds).tolist(), *sums, strict=True)]
