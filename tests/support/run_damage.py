"""What is done to a finished run behind its back: rows and files changed, with or without the hashes that would fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.io.hashing import ROW_HASH, MerkleTree, leaves, shard_digest
from batchgen.io.manifest import Tally, part_name, read_manifest, write_manifest

Change = Callable[[pa.Table], pa.Table]


def rewrite(out: Path, shard: int, change: Change, *, metadata: bool = True) -> None:
    """Write a shard's file anew, under another codec and with small row groups."""
    path = out / part_name(shard)
    table = change(pq.read_table(path))
    pq.write_table(table if metadata else table.replace_schema_metadata(), path, compression="gzip", row_group_size=7)


def take(*rows: int | range) -> Change:
    """These rows, in this order."""
    order = [row for part in rows for row in (part if isinstance(part, range) else [part])]
    return lambda table: table.take(pa.array(order))


def put(column: str, row: int, value: Any) -> Change:
    """Another value in one place."""

    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        index = table.column_names.index(column)
        return table.set_column(index, table.schema.field(column), pa.array(values, table.schema.field(column).type))

    return change


def rehash(table: pa.Table) -> pa.Table:
    """With the row_hash that each row should have."""
    index = table.column_names.index(ROW_HASH)
    return table.set_column(index, table.schema.field(index), pa.array([leaf.hex() for leaf in leaves(table)]))


def forge(out: Path, shard: int, change: Change, *, root: bool) -> None:
    """Change rows, and edit row hashes, the shard's digest and counts to match; with `root`, that too."""
    rewrite(out, shard, lambda table: rehash(change(table)))
    manifest = read_manifest(out)
    table = pq.read_table(out / part_name(shard))
    records = list(manifest.shards)
    records[shard] = replace(records[shard], digest=shard_digest(leaves(table)), tally=Tally.of(table))
    manifest = manifest.with_shards(records)
    if root:
        tree = MerkleTree()
        for record in records:
            tree.add(record.start * manifest.plan.n, leaves(pq.read_table(out / part_name(record.index))))
        manifest = replace(manifest, root=tree.root(manifest.plan.rows * manifest.plan.n))
    write_manifest(out, manifest)
