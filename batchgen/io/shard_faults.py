"""Which rows of a shard are wrong, and how: what is asked once a file is known not to hold what was committed."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from batchgen.io.finding import Finding
from batchgen.io.hashing import ROW_HASH, shard_digest
from batchgen.io.manifest import FILE_NAME, Manifest, ShardRecord, Tally, part_name
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.row_rules import RowRules
from batchgen.io.writer import ROW_KEYS, row_keys_json
from batchgen.places import Place

KeysOf = Callable[[int, int], Sequence[str]]  # (start, stop) -> the row keys of these input rows


def expected_ids(run: Place, manifest: Manifest, shard: ShardRecord) -> list[tuple[str, int]]:
    """The samples that belong in a file, as its own metadata tells; none when it cannot."""
    try:
        with open_parquet_file(run / part_name(shard.index)) as file:
            metadata = file.schema_arrow.metadata or {}
    except (pa.ArrowException, OSError):
        return []
    return Suspect(manifest, shard, None).expected(metadata.get(ROW_KEYS, b"")) or []


@dataclass(frozen=True, slots=True)
class Suspect:
    """A shard whose file is not what was committed. `keys_of` reads row keys from the input, where that is at hand."""

    manifest: Manifest
    shard: ShardRecord
    keys_of: KeysOf | None

    @property
    def name(self) -> str:
        return part_name(self.shard.index)

    @property
    def size(self) -> int:
        """Rows that belong in the file."""
        return (self.shard.stop - self.shard.start) * self.manifest.plan.n

    def torn(self, detail: str) -> list[Finding]:
        """Of a file none of whose rows can be trusted."""
        lost = self.expected(b"")
        if lost is None:
            detail += (
                f"; it held input rows {self.shard.start} to {self.shard.stop - 1}, {self.manifest.plan.n} samples each"
            )
        return [
            Finding("torn", self.name, detail),
            *(Finding("missing", self.name, "lost with its file", *id_) for id_ in lost or ()),
        ]

    def faults(
        self, table: pa.Table, leaves: Sequence[bytes], rules: RowRules, metadata: Mapping[bytes, bytes]
    ) -> list[Finding]:
        """Of a file that can be read. `table` has the columns that rules and counts look at; `leaves` are its own."""
        keys = texts(table["row_key"])
        ids = list(zip(keys, table["sample_index"].to_pylist(), strict=True))
        broken = [Finding("changed", self.name, detail, *ids[row]) for row, detail in rules.faults(table, keys)]
        changed = {
            id_: f"hashes to {now.hex()}, and row_hash is {then}"
            for id_, now, then in zip(ids, leaves, texts(table[ROW_HASH]), strict=True)
            if now.hex() != then
        }
        if changed or shard_digest(leaves) != self.shard.digest:
            return self._altered(ids, changed, broken, metadata)
        if part := other_part(self.manifest, metadata):
            broken.append(Finding("changed", self.name, f"its {part} is not that of the manifest"))
        return broken + [Finding("manifest", FILE_NAME, detail) for detail in self._contradictions(table, keys)]

    def expected(self, keys_json: bytes) -> list[tuple[str, int]] | None:
        """The samples that belong in the file, in order; None when neither the file nor the input can tell."""
        if hashlib.sha256(keys_json).hexdigest() != self.shard.keys_digest:
            keys_json = row_keys_json(list(self.keys_of(self.shard.start, self.shard.stop))) if self.keys_of else b""
        if hashlib.sha256(keys_json).hexdigest() != self.shard.keys_digest:
            return None
        try:
            keys = json.loads(keys_json)
        except ValueError:  # who forged the digest forged it of anything
            return None
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            return None
        return [(key, index) for key in keys for index in range(self.manifest.plan.n)]

    def _altered(
        self,
        ids: Sequence[tuple[str, int]],
        changed: Mapping[tuple[str, int], str],
        broken: list[Finding],
        metadata: Mapping[bytes, bytes],
    ) -> list[Finding]:
        """Rows do not hash to the digest on record. `changed` are those that do not hash to their own row_hash."""
        if odd := self._origin(metadata):
            return [Finding("foreign", self.name, odd)]
        counts = Counter(ids)
        twice = [
            Finding("doubled", self.name, f"is there {count} times", *id_) for id_, count in counts.items() if count > 1
        ]
        expected = self.expected(metadata.get(ROW_KEYS, b""))
        if expected is None:
            detail = f"holds {len(ids)} rows of {self.size}, and which is known from the input alone"
            edited = [Finding("changed", self.name, detail, *id_) for id_, detail in changed.items()]
            return [Finding("changed", self.name, detail), *twice, *edited]
        known = set(expected)
        found = [Finding("missing", self.name, "is not in its file", *id_) for id_ in expected if id_ not in counts]
        found += twice
        found += [Finding("foreign", self.name, "does not belong there", *id_) for id_ in counts if id_ not in known]
        if not found:
            pairs = zip(ids, expected, strict=True)
            found += [Finding("moved", self.name, "is not in its place", *id_) for id_, place in pairs if id_ != place]
        found += [Finding("changed", self.name, detail, *id_) for id_, detail in changed.items() if id_ in known]
        edited_with_hash = "rows were edited together with their row_hash: which cannot be told"
        return found or broken or [Finding("changed", self.name, edited_with_hash)]

    def _origin(self, metadata: Mapping[bytes, bytes]) -> str | None:
        """Where the file is really from, if it says that it is another one."""
        if part := other_part(self.manifest, metadata):
            return f"is a file of another run: its {part} is another"
        keys_digest = hashlib.sha256(metadata.get(ROW_KEYS, b"")).hexdigest()
        for other in self.manifest.shards:
            if other.keys_digest == keys_digest and other.index != self.shard.index:
                return f"holds the rows of {part_name(other.index)}"
        return None

    def _contradictions(self, table: pa.Table, keys: Sequence[str]) -> Iterator[str]:
        """The rows are those of the digest; what else does the manifest say of them?"""
        index = self.shard.index
        if table.num_rows != self.size:
            yield f"{self.name} and its digest are of {table.num_rows} rows, and shard {index} is of {self.size}"
        if Tally.of(table) != self.shard.tally:
            yield f"the counts of shard {index} are not those of {self.name}"
        stored = row_keys_json(keys[:: self.manifest.plan.n])
        if hashlib.sha256(stored).hexdigest() != self.shard.keys_digest:
            yield f"keys_digest of shard {index} is not of the row keys of {self.name}"


def other_part(manifest: Manifest, metadata: Mapping[bytes, bytes]) -> str | None:
    """A part of the fingerprint that a file, by its own metadata, has otherwise; one that it lacks is none."""
    parts = manifest.fingerprint.items()
    return next(
        (part for part, value in parts if metadata.get(f"batchgen.{part}".encode(), own := value.encode()) != own), None
    )


def texts(column: pa.ChunkedArray) -> list[str]:
    """Also of a damaged file, whose text may no longer be UTF-8, or null where none can be."""
    values = column.cast(pa.binary()).to_pylist()
    return ["" if value is None else value.decode("utf-8", "backslashreplace") for value in values]
