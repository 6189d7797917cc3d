"""A second table beside the input, and the rows or pairs that a job takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from batchgen.errors import InputError
from batchgen.io.columns import Undecodable, cells, check_type

_DRAW = b"batchgen.sample_rows.v1\0"
MAX_ROWS = 1_000_000  # of a second table, which is held in memory


@dataclass(frozen=True, slots=True)
class Partners:
    """A second table, and which of its rows each row that is taken goes with."""

    label: str
    sha256: str
    columns: pa.RecordBatch  # under their prefixed names
    keys: tuple[str, ...]
    index: NDArray[np.int64]  # [rows taken]

    def beside(self, batch: pa.RecordBatch, names: Sequence[str], rows: range) -> pa.RecordBatch:
        """`batch`, which holds the rows taken `rows`, with those of the columns `names` that are of this table."""
        own = [name for name in names if name in self.columns.schema.names]
        if not own:
            return batch
        index = pa.array(self.index[rows.start : rows.stop])
        added = [self.columns.column(name).take(index) for name in own]
        return pa.record_batch([*batch.columns, *added], names=[*batch.schema.names, *own])

    def keys_of(self, rows: range) -> list[str]:
        """The keys of the partners of the rows taken `rows`."""
        return [self.keys[at] for at in self.index[rows.start : rows.stop]]


def second_table(table: pa.Table, key: str, prefix: str, path: str) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """(columns under prefixed names, keys) of a second table. Raises InputError at `path` for what cannot be one."""
    if not 0 < table.num_rows <= MAX_ROWS:
        raise InputError(f"has {table.num_rows} rows; a second table has from 1 to {MAX_ROWS}", where=path)
    check_type("row_key", table.schema.field(key).type, f"{path}: {key}")
    [batch] = table.combine_chunks().to_batches(max_chunksize=MAX_ROWS)
    keys: dict[str, int] = {}
    for row, value in enumerate(cells(batch.column(key))):
        if value is None or isinstance(value, Undecodable):
            fault = "is null" if value is None else "holds bytes that are not UTF-8"
            raise InputError(f"the key {fault}", where=f"{path} row {row}", hint=f"see column {key!r}")
        if (first := keys.setdefault(str(value), row)) != row:
            raise InputError(f"has the key {str(value)!r} of row {first}", where=f"{path} row {row}")
    return batch.rename_columns([prefix + name for name in batch.schema.names]), tuple(keys)


def draw(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """`count` of the numbers 0 .. total-1, ascending; every set of them is equally likely over the seeds.

    Floyd's method with a hash in place of a generator: O(count), and the same numbers on every machine.
    """
    chosen: set[int] = set()
    head = _DRAW + seed.to_bytes(8, "little")
    for top in range(total - count, total):
        drawn = int.from_bytes(xxhash.xxh3_128_digest(head + top.to_bytes(8, "little")), "big") % (top + 1)
        chosen.add(top if drawn in chosen else drawn)
    return np.sort(np.fromiter(chosen, np.int64, count))


def pick(counts: Sequence[int], partners: int, drawn: NDArray[np.int64] | None) -> list[tuple[Any, Any]]:
    """(rows taken before, row of the second table) of each file with `counts` rows, as arrays of equal length.

    Pairs are numbered through all files, all partners of a row one after another; `drawn` are those to take, None all.
    """
    found, first = [], 0
    for count in counts:
        last = first + count * partners
        if drawn is None:
            pairs = np.arange(count * partners, dtype=np.int64)
        else:
            low, high = np.searchsorted(drawn, [first, last])
            pairs = drawn[low:high] - first
        found.append((pairs // partners, pairs % partners))
        first = last
    return found
