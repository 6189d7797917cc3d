"""A run whose samples another run may take: found by row key, in files every row of which was hashed again."""

import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchgen.errors import RunError
from batchgen.io.hashing import MerkleTree
from batchgen.io.manifest import FILE_NAME, Manifest, ShardRecord, part_name, read_manifest
from batchgen.io.row_batches import row_batches
from batchgen.io.row_keys import hash_keys
from batchgen.io.row_rules import RowRules, job_of
from batchgen.io.shard_check import check_shard, check_shards
from batchgen.places import Place
from batchgen.spec import JobSpec

_HELD_BYTES = 256 << 20  # of checked shards, the latest; of two runs in one order, one or two are needed at a time
_BATCH_ROWS = 4096

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class EarlierRun:
    """Made by `open`. Memory is 16 bytes for each of its input rows, and some of its shards."""

    path: Place
    manifest: Manifest
    _columns: Sequence[str]  # that are read
    _hashes: NDArray[np.uint64]  # of its row keys, ascending
    _rows: NDArray[np.int64]  # the input rows that have them
    _held: OrderedDict[int, pa.Table | None] = field(default_factory=OrderedDict)  # shards, the latest last
    _held_bytes: int = 0

    @classmethod
    def open(cls, path: Place, manifest: Manifest, columns: Collection[str]) -> Self:
        """Check every row of the run, and learn its key; `columns`: those that are wanted of the rows.

        `manifest` is of `read_earlier`. A file that is not as it was committed is left out, with a warning. Raises
        RunError for a run whose rows are not those of its root, and when an object store fails.
        """
        tree, n = MerkleTree(), manifest.plan.n
        hashes, rows = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
        for shard, leaves, wrong in check_shards(path, manifest, manifest.shards):
            if wrong:
                _log.warning("%s: %s; %s is not reused", path, wrong[0], part_name(shard.index))
                continue
            tree.add(shard.start * n, leaves)
            keys = _table(path, shard, ["row_key"])["row_key"].to_pylist()[::n]
            hashes.append(hash_keys([keys], len(keys)))
            rows.append(np.arange(shard.start, shard.stop))
        all_hashes, all_rows = np.concatenate(hashes)[:, 0], np.concatenate(rows)
        if manifest.finished and len(all_rows) == manifest.plan.rows and tree.root(len(all_rows) * n) != manifest.root:
            raise _refused(path, "its root is not that of its rows")
        order = np.argsort(all_hashes)
        chosen = [name for name, _ in manifest.columns if name in {"row_key", "sample_index", *columns}]
        return cls(path, manifest, chosen, all_hashes[order], all_rows[order])

    def samples(self, keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """The samples that it has of each of `keys`, in order; none from a file that is not as it was committed.

        Raises RunError when an object store fails.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        wanted, rows = set(keys), self._located(keys)
        per_shard, n = self.manifest.plan.rows_per_shard, self.manifest.plan.n
        for index in np.unique(rows // per_shard).tolist():
            table = self._checked(index)
            if table is None:
                continue
            inside = rows[rows // per_shard == index] - index * per_shard
            places = (inside[:, None] * n + np.arange(n)).ravel()
            for row in table.take(pa.array(places)).to_pylist():
                if row["row_key"] in wanted:  # two keys may have one hash
                    found.setdefault(row["row_key"], []).append(row)
        return found

    def _located(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """The input rows, ascending, that may have one of `keys`."""
        hashes = np.unique(hash_keys([list(keys)], len(keys))[:, 0])
        firsts, ends = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        spans = zip(firsts.tolist(), ends.tolist(), strict=True)
        return np.sort(np.concatenate([self._rows[:0], *(self._rows[a:b] for a, b in spans if a < b)]))

    def _checked(self, index: int) -> pa.Table | None:
        """The rows of a shard; None when anything about them is not as it was committed."""
        if index in self._held:
            self._held.move_to_end(index)
            return self._held[index]
        [shard] = [shard for shard in self.manifest.shards if shard.index == index]
        _, wrong = check_shard(self.path, self.manifest, shard)  # again: a run takes long, and anyone may write there
        if wrong:
            _log.warning("%s: %s; %s is no longer reused", self.path, wrong[0], part_name(index))
        table = None if wrong else _table(self.path, shard, self._columns)
        self._held[index] = table
        self._held_bytes += _size(table)
        while len(self._held) > 1 and self._held_bytes > _HELD_BYTES:
            self._held_bytes -= _size(self._held.popitem(last=False)[1])
        return table


def read_earlier(path: Place) -> tuple[Manifest, JobSpec]:
    """Of the run at `path`; no row is looked at. Raises RunError for what is no run, or contradicts itself."""
    manifest = read_manifest(path)
    for contradiction in manifest.contradictions():
        raise _refused(path, contradiction)
    try:
        RowRules.of(manifest)
        return manifest, job_of(manifest)
    except RunError as error:
        raise _refused(path, error.message) from None


def _size(table: pa.Table | None) -> int:
    return 0 if table is None else int(table.nbytes)


def _table(run: Place, shard: ShardRecord, columns: Sequence[str]) -> pa.Table:
    return pa.concat_tables(row_batches(run, shard, _BATCH_ROWS, columns)).combine_chunks()


def _refused(run: Place, why: str) -> RunError:
    hint = f"batchgen verify {run} says all that is wrong"
    return RunError(f"cannot be reused: {why}", where=str(run / FILE_NAME), hint=hint)
