"""Does a shard's file hold what the manifest says, and if not, which rows are wrong?"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import BatchgenError
from batchgen.io.canonical import columns_json
from batchgen.io.hashing import ROW_HASH, leaves, shard_digest
from batchgen.io.manifest import FILE_NAME, Manifest, ShardRecord, Tally, part_name
from batchgen.io.writer import ROW_KEYS, row_keys_json

Kind = Literal["missing", "doubled", "changed", "foreign", "moved", "torn", "stray", "manifest", "unfinished"]
KeysOf = Callable[[int, int], Sequence[str]]  # (start, stop) -> the row keys of these input rows

_BATCH_ROWS = 8192
_JUDGED = ["row_key", "sample_index", ROW_HASH, "finish_reason", "num_prompt_tokens", "num_output_tokens"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: with a row (`row_key` and `sample_index`), a file, or the manifest."""

    kind: Kind
    file: str  # below the run folder
    detail: str
    row_key: str | None = None
    sample_index: int | None = None

    def __str__(self) -> str:
        row = "" if self.row_key is None else f" row {self.row_key!r} sample {self.sample_index}"
        return f"{self.kind}: {self.file}{row}: {self.detail}"


def check_shard(
    run: Path, manifest: Manifest, shard: ShardRecord, keys_of: KeysOf | None = None
) -> tuple[list[bytes], list[Finding]]:
    """(leaves, findings): everything about one shard, recomputed from its file.

    No findings: every value is as it was committed. Otherwise the leaves are of what the file holds now, none if it is
    torn. `keys_of` reads row keys from the input; it is asked only to name the rows of a file that does not tell.
    """
    name = part_name(shard.index)
    try:
        with pq.ParquetFile(run / name) as file:
            schema = file.schema_arrow
            if columns_json(schema) != [list(column) for column in manifest.columns]:
                return [], _torn(manifest, shard, keys_of, "has other columns than the manifest says")
            read = [_read(pa.Table.from_batches([batch])) for batch in file.iter_batches(_BATCH_ROWS)]
    except FileNotFoundError:
        return [], _torn(manifest, shard, keys_of, "there is no such file")
    except (pa.ArrowException, BatchgenError, OSError) as error:
        return [], _torn(manifest, shard, keys_of, f"cannot be read: {str(error).splitlines()[0]}")
    leaves_now = [leaf for batch, _ in read for leaf in batch]
    table = pa.concat_tables([judged for _, judged in read]) if read else schema.empty_table().select(_JUDGED)
    hashes = pa.chunked_array([[leaf.hex() for leaf in leaves_now]], pa.string())
    if shard_digest(leaves_now) != shard.digest or not hashes.equals(table[ROW_HASH]):
        return leaves_now, _name_rows(manifest, shard, table, hashes, schema.metadata or {}, keys_of)
    if Tally.of(table) != shard.tally:
        return leaves_now, [
            Finding("manifest", FILE_NAME, f"the counts of shard {shard.index} are not those of {name}")
        ]
    return leaves_now, []


def expected_ids(run: Path, manifest: Manifest, shard: ShardRecord) -> list[tuple[str, int]]:
    """The samples that belong in a file, as its own metadata tells; none when it cannot."""
    try:
        metadata = pq.read_schema(run / part_name(shard.index)).metadata or {}
    except (pa.ArrowException, OSError):
        return []
    return _expected(manifest, shard, metadata.get(ROW_KEYS, b""), None) or []


def _read(batch: pa.Table) -> tuple[list[bytes], pa.Table]:
    return leaves(batch), batch.select(_JUDGED)


def _torn(manifest: Manifest, shard: ShardRecord, keys_of: KeysOf | None, detail: str) -> list[Finding]:
    """Of a file none of whose rows can be trusted."""
    name = part_name(shard.index)
    lost = _expected(manifest, shard, b"", keys_of)
    if lost is None:
        detail += f"; it held input rows {shard.start} to {shard.stop - 1}, {manifest.plan.n} samples each"
    return [
        Finding("torn", name, detail),
        *(Finding("missing", name, "lost with its file", *id_) for id_ in lost or ()),
    ]


def _name_rows(
    manifest: Manifest,
    shard: ShardRecord,
    table: pa.Table,
    hashes: pa.ChunkedArray,
    metadata: dict[bytes, bytes],
    keys_of: KeysOf | None,
) -> list[Finding]:
    """What is wrong with a file that can be read and does not hold what was committed."""
    name = part_name(shard.index)
    if odd := _origin(manifest, shard, metadata):
        return [Finding("foreign", name, odd)]
    ids = list(zip(_texts(table["row_key"]), table["sample_index"].to_pylist(), strict=True))
    counts = Counter(ids)
    twice = [Finding("doubled", name, f"is there {count} times", *id_) for id_, count in counts.items() if count > 1]
    stored = zip(ids, hashes.to_pylist(), _texts(table[ROW_HASH]), strict=True)
    changed = {id_: f"hashes to {now}, and row_hash is {then}" for id_, now, then in stored if now != then}
    expected = _expected(manifest, shard, metadata.get(ROW_KEYS, b""), keys_of)
    if expected is None:
        size = (shard.stop - shard.start) * manifest.plan.n
        found = [Finding("changed", name, f"holds {len(ids)} rows of {size}, and which is known from the input alone")]
        return found + twice + [Finding("changed", name, detail, *id_) for id_, detail in changed.items()]
    known = set(expected)
    found = [Finding("missing", name, "is not in its file", *id_) for id_ in expected if id_ not in counts]
    found += twice
    found += [Finding("foreign", name, "does not belong there", *id_) for id_ in counts if id_ not in known]
    if not found:
        pairs = zip(ids, expected, strict=True)
        found += [Finding("moved", name, "is not in its place", *id_) for id_, place in pairs if id_ != place]
    found += [Finding("changed", name, detail, *id_) for id_, detail in changed.items() if id_ in known]
    return found or [Finding("changed", name, "rows were edited together with their row_hash: which cannot be told")]


def _origin(manifest: Manifest, shard: ShardRecord, metadata: dict[bytes, bytes]) -> str | None:
    """Where the file is really from, if it says that it is another one."""
    for part, value in manifest.fingerprint.items():
        if metadata.get(f"batchgen.{part}".encode(), value.encode()) != value.encode():
            return f"is a file of another run: its {part} is another"
    keys_digest = hashlib.sha256(metadata.get(ROW_KEYS, b"")).hexdigest()
    for other in manifest.shards:
        if other.keys_digest == keys_digest and other.index != shard.index:
            return f"holds the rows of {part_name(other.index)}"
    return None


def _expected(
    manifest: Manifest, shard: ShardRecord, keys_json: bytes, keys_of: KeysOf | None
) -> list[tuple[str, int]] | None:
    """The samples that belong in the file, in order; None when neither the file nor the input can tell."""
    if hashlib.sha256(keys_json).hexdigest() != shard.keys_digest:
        keys_json = row_keys_json(list(keys_of(shard.start, shard.stop))) if keys_of else b""
    if hashlib.sha256(keys_json).hexdigest() != shard.keys_digest:
        return None
    return [(key, index) for key in json.loads(keys_json) for index in range(manifest.plan.n)]


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Also of a damaged file, whose text may no longer be UTF-8."""
    return [text.decode("utf-8", "backslashreplace") for text in column.cast(pa.binary()).to_pylist()]
