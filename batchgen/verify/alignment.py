"""Two runs, checked and aligned by (row_key, sample_index): which rows are the same, which differ, which are alone.

DuckDB joins the keys, as bytes, and compares the leaves, as integers. No value of a row ever goes through SQL.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchgen.errors import RunError, VerifyError
from batchgen.io.hashing import MerkleTree
from batchgen.io.manifest import Manifest, ShardRecord, part_name
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.schema import as_written
from batchgen.io.shard_check import check_shards
from batchgen.places import Place

Places = NDArray[np.int64]  # numbers of samples in the order of a run: input row * n + sample_index

_CHUNK_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class RunRows:
    """The rows of a run that is read and never written."""

    path: Place
    manifest: Manifest

    def check(self) -> Iterator[pa.Table]:
        """Every row there is: key, sample, its leaf as two numbers, its place. Raises VerifyError unless all hold."""
        for contradiction in self.manifest.contradictions():
            raise self.broken(f"manifest.json: {contradiction}")
        tree, plan = MerkleTree(), self.manifest.plan
        for shard, leaves, wrong in check_shards(self.path, self.manifest, self.manifest.shards):
            if wrong or len(leaves) != (shard.stop - shard.start) * plan.n:
                raise self.broken(str(wrong[0]) if wrong else f"{part_name(shard.index)}: has rows too many or few")
            tree.add(shard.start * plan.n, leaves)
            yield self._keys(shard, leaves)
        if self.manifest.root is None:
            return
        if not self.manifest.finished or tree.root(plan.num_samples) != self.manifest.root:
            raise self.broken("manifest.json: its root is not that of the rows")

    def take(self, places: Places, columns: Sequence[str]) -> pa.Table:
        """The rows at `places`, in that order; of `columns`, those that the run has."""
        chosen = [name for name, _ in self.manifest.columns if name in columns]
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        shards, cuts = np.unique(ordered // self._per_shard, return_index=True)
        parts = [
            self._read(int(shard), chosen, group - int(shard) * self._per_shard)
            for shard, group in zip(shards, np.split(ordered, cuts[1:]), strict=True)
        ]
        table = pa.concat_tables(parts, promote_options="permissive")
        if np.array_equal(order, np.arange(len(order))):
            return table
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return table.take(pa.array(back))

    def has(self, places: Places) -> NDArray[np.bool_]:
        """Whether the shard of each place is made."""
        made = np.array([shard.index for shard in self.manifest.shards], np.int64)
        return np.isin(places // self._per_shard, made)

    @property
    def _per_shard(self) -> int:
        return self.manifest.plan.rows_per_shard * self.manifest.plan.n

    def _keys(self, shard: ShardRecord, leaves: list[bytes]) -> pa.Table:
        table = self._read(shard.index, ["row_key", "sample_index"], np.arange(len(leaves)))
        words = np.frombuffer(b"".join(leaves), ">u8").astype(np.uint64).reshape(-1, 2)
        first = shard.start * self.manifest.plan.n
        return pa.table(
            {
                "key": table["row_key"].cast(pa.binary()),
                "sample": table["sample_index"],
                "high": words[:, 0],
                "low": words[:, 1],
                "place": np.arange(first, first + len(leaves)),
            }
        )

    def _read(self, shard: int, columns: Sequence[str], rows: Places) -> pa.Table:
        """`rows` ascend, each is there once. Reads no row group of the shard's file in which none of them lies."""
        try:
            # Buffers and threads cost more than they save on small files.
            with open_parquet_file(self.path / part_name(shard), pre_buffer=False) as file:
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                ends = np.cumsum(sizes)
                groups = np.unique(np.searchsorted(ends, rows, side="right"))
                table = file.read_row_groups(groups.tolist(), columns=list(columns), use_threads=False)
                table = as_written(table)
        except (OSError, pa.ArrowException, ValueError, IndexError) as error:
            raise self.broken(f"{part_name(shard)}: changed while it was read: {error}") from error
        if len(rows) == table.num_rows:
            return table
        skipped = (ends - sizes)[groups] - np.cumsum([0, *(sizes[group] for group in groups)])[:-1]
        inside = rows - skipped[np.searchsorted(groups, np.searchsorted(ends, rows, side="right"))]
        return table.take(pa.array(inside))

    def broken(self, what: str) -> VerifyError:
        """The error for a run whose rows cannot be trusted."""
        hint = f"only rows that hold are compared: batchgen verify {self.path} says all that is wrong"
        return VerifyError(f"does not verify: {what}", where=str(self.path), hint=hint)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which rows of two runs are the same, and the places of all others, ascending; 16 bytes for each that differs."""

    identical: int
    both: Places  # [pairs, 2], ascending in the first run: of one row key and sample, with other leaves
    only_a: Places
    only_b: Places


def align(a: RunRows, b: RunRows) -> Alignment:
    """Read and check every row of both runs, and join them by (row_key, sample_index). Raises VerifyError, RunError.

    DuckDB holds the keys, in a gigabyte of memory and beyond that in a temporary folder.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="batchgen-diff-") as folder:
            settings = {"temp_directory": folder, "memory_limit": "1GB", "preserve_insertion_order": False}
            with duckdb.connect(":memory:", config=settings) as connection:
                return _join(connection, a, b)
    except duckdb.Error as error:
        message = f"the row keys cannot be joined: {str(error).splitlines()[0]}"
        hint = "give it more room: TMPDIR names the folder"
        raise RunError(message, where=tempfile.gettempdir(), hint=hint) from error


def _join(connection: duckdb.DuckDBPyConnection, a: RunRows, b: RunRows) -> Alignment:
    sizes = [_load(connection, name, run) for name, run in (("a", a), ("b", b))]
    connection.execute("""
        CREATE TABLE pairs AS
        SELECT a.place AS a, b.place AS b, a.high = b.high AND a.low = b.low AS same
        FROM a FULL JOIN b ON a.key = b.key AND a.sample = b.sample
    """)
    [joined] = connection.execute("SELECT count(a), count(b) FROM pairs").fetchall()
    for run, size, met in ((b, sizes[0], joined[0]), (a, sizes[1], joined[1])):
        if size != met:
            raise run.broken("a row is there more than once")
    [(identical,)] = connection.execute("SELECT count(*) FROM pairs WHERE same").fetchall()
    pairs = connection.execute("SELECT a, b FROM pairs WHERE NOT same").fetchnumpy()
    both = np.stack([np.asarray(pairs[side], np.int64) for side in "ab"], axis=1)
    return Alignment(
        identical, both[np.argsort(both[:, 0])], _alone(connection, "a", "b"), _alone(connection, "b", "a")
    )


def _load(connection: duckdb.DuckDBPyConnection, name: str, run: RunRows) -> int:
    """The number of rows of `run`, which are then in the table `name`."""
    connection.execute(f"CREATE TABLE {name} (key BLOB, sample INT, high UBIGINT, low UBIGINT, place BIGINT)")
    held: list[pa.Table] = []
    rows = 0

    def flush() -> None:
        connection.register("held", pa.concat_tables(held))
        connection.execute(f"INSERT INTO {name} SELECT * FROM held")
        connection.unregister("held")
        held.clear()

    for table in run.check():
        held.append(table)
        rows += table.num_rows
        if sum(part.num_rows for part in held) >= _CHUNK_ROWS:
            flush()
    if held:
        flush()
    return rows


def _alone(connection: duckdb.DuckDBPyConnection, one: str, other: str) -> Places:
    found = connection.execute(f"SELECT {one} AS place FROM pairs WHERE {other} IS NULL").fetchnumpy()
    return np.sort(np.asarray(found["place"], np.int64))
