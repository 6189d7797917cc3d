"""Products that are broken on purpose, for the counter-tests: each must be caught by a short chaos run.

Each puts a function of its own under a name that the product has: an assertion says when that name has moved.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import batchgen.executor.local as local
import batchgen.executor.open_run as open_run
import batchgen.io.manifest as manifest
import batchgen.io.run_folder as run_folder
import batchgen.io.writer as writer
from batchgen.io.finding import Finding
from batchgen.io.hashing import ROW_HASH, MerkleTree, leaves, shard_digest
from batchgen.io.manifest import ShardRecord, Tally, part_name
from batchgen.io.shard_check import CheckedShard


def write_in_place() -> None:
    """Files are written where they are read: a kill or a full disk leaves half of one."""

    def write(path: Path, data: bytes | memoryview) -> None:
        with writer.writing(path), vars(writer).get("open", open)(path, "wb") as file:
            file.write(data)

    for module in (writer, manifest, run_folder):
        assert "write_atomically" in vars(module)
        vars(module)["write_atomically"] = write


def trust_every_file() -> None:
    """A resume that takes every part file that can be read for a finished shard, named by the manifest or not."""
    right = open_run.trusted_shards
    assert "trusted_shards" in vars(local)

    def trusting(folder: Any, plan: Any, tree: MerkleTree) -> set[int]:
        named = {shard.index for shard in folder.started.shards}
        found = {}
        for shard in plan.shards:
            path = folder.path / part_name(shard.index)
            if shard.index not in named and path.exists():
                with contextlib.suppress(pa.ArrowException, OSError):
                    found[shard] = pq.read_table(path), path.read_bytes()
        trusted = right(folder, plan, tree)
        for shard, (table, data) in found.items():
            (folder.path / part_name(shard.index)).write_bytes(data)
            digest = shard_digest(leaves(table))
            record = ShardRecord(shard.index, shard.start, shard.stop, digest, "", Tally.of(table), probes=0)
            folder.manifest = folder.started.with_shards([*folder.started.shards, record])
            tree.add(shard.start * plan.n, leaves(table)[: shard.num_rows * plan.n])
            trusted.add(shard.index)
        return trusted

    vars(local)["trusted_shards"] = trusting


def skip_the_hashes() -> None:
    """A resume that looks whether a file can be read, and takes its word for the hashes."""
    assert "check_shards" in vars(open_run)

    def unchecked(run: Path, there: Any, shards: Iterable[ShardRecord]) -> Iterator[CheckedShard]:
        for shard in shards:
            try:
                table = pq.read_table(run / part_name(shard.index))
            except (pa.ArrowException, OSError) as error:
                yield shard, [], [Finding("torn", part_name(shard.index), str(error))]
            else:
                yield shard, [bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()], []

    vars(open_run)["check_shards"] = unchecked


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault for fault in (write_in_place, trust_every_file, skip_the_hashes)
}
