"""Damage that is done to a run folder between two processes: what a disk, a copy or a person does to files."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.io.manifest import FILE_NAME, part_name, read_manifest

Plant = Callable[[Path, random.Random], bool]  # False when the folder has nothing to do it to


def parts(out: Path) -> list[Path]:
    """The files of committed shards."""
    return [
        path for shard in read_manifest(out).shards if (path := out / f"rows/part-{shard.index:05}.parquet").exists()
    ]


def a_part(out: Path, chance: random.Random) -> Path | None:
    found = parts(out)
    return chance.choice(found) if found else None


def truncated(out: Path, chance: random.Random) -> bool:
    """A part file loses its end."""
    if path := a_part(out, chance):
        data = path.read_bytes()
        path.write_bytes(data[: chance.randrange(len(data))])
    return path is not None


def flipped(out: Path, chance: random.Random) -> bool:
    """One bit of a part file: of its values, or of what no reader looks at.

    Not one that verify rightly sees and the values do not tell (of the file's own metadata), and not one that pyarrow,
    with which batchgen reads, passes over, and DuckDB does not (of a page header's statistics).
    """
    if path := a_part(out, chance):
        data, whole = path.read_bytes(), read_table(path)
        while True:
            other = bytearray(data)
            other[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(other)
            now = read_table(path)
            if whole is None or now is None or not now.equals(whole):
                break
            if now.schema.metadata == whole.schema.metadata and duckdb_reads(path):
                break
    return path is not None


def read_table(path: Path) -> pa.Table | None:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError):
        return None


def duckdb_reads(path: Path) -> bool:
    try:
        duckdb.sql(f"SELECT * FROM '{path}'").fetchall()
    except duckdb.Error:
        return False
    return True


def edited(out: Path, chance: random.Random) -> bool:
    """The text of one row is another, in a file that any reader takes."""
    if path := a_part(out, chance):
        table = pq.read_table(path)
        at, texts = table.column_names.index("text"), table["text"].to_pylist()
        texts[chance.randrange(len(texts))] = "what I would rather read"
        pq.write_table(table.set_column(at, table.field("text"), pa.array(texts, table["text"].type)), path)
    return path is not None


def deleted(out: Path, chance: random.Random) -> bool:
    """A part file is gone."""
    if path := a_part(out, chance):
        path.unlink()
    return path is not None


def swapped(out: Path, chance: random.Random) -> bool:
    """Two part files change names."""
    if len(parts(out)) < 2:
        return False
    one, other = chance.sample(parts(out), 2)
    between = one.with_suffix(".between")
    one.rename(between)
    other.rename(one)
    between.rename(other)
    return True


def stray(out: Path, chance: random.Random) -> bool:
    """A copy of a part file, under the name of a shard that is still to be made or of none."""
    manifest, path = read_manifest(out), a_part(out, chance)
    if path is None:
        return False
    named = {shard.index for shard in manifest.shards}
    free = [index for index in range(manifest.plan.num_shards + 1) if index not in named]
    shutil.copy(path, out / part_name(chance.choice(free)))
    return True


def temporary(out: Path, chance: random.Random) -> bool:
    """Temporaries of writes that were killed: whole, torn, empty."""
    source = a_part(out, chance) or out / FILE_NAME
    data = source.read_bytes()
    for name in chance.sample(
        ["rows/.part-00000.parquet.tmp", "rows/.part-00099.parquet.tmp", ".manifest.json.tmp", ".job.yaml.tmp"], 2
    ):
        (out / name).write_bytes(data[: chance.choice([0, len(data) // 3, len(data)])])
    return True


def torn_log(out: Path, chance: random.Random) -> bool:
    """The event log ends within a line, or is gone."""
    path = out / "events.jsonl"
    if not path.exists():
        return False
    if chance.random() < 0.3:
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: chance.randrange(len(data))])
    return True


PLANTS: dict[str, Plant] = {
    plant.__name__: plant for plant in (truncated, flipped, edited, deleted, swapped, stray, temporary, torn_log)
}


class OldManifests:
    """Every manifest that a round has had, to put an older one back."""

    def __init__(self) -> None:
        self._seen: list[bytes] = []

    def remember(self, out: Path) -> None:
        path = out / FILE_NAME
        if path.exists() and (data := path.read_bytes()) not in self._seen:
            self._seen.append(data)

    def put_back(self, out: Path, chance: random.Random) -> bool:
        if len(self._seen) < 2:
            return False
        (out / FILE_NAME).write_bytes(chance.choice(self._seen[:-1]))
        return True


def spoil_manifest(out: Path, chance: random.Random) -> None:
    """It is torn, no JSON, of a newer version, or gone: nothing that a resume may guess its way around."""
    path = out / FILE_NAME
    data, way = path.read_bytes(), chance.randrange(4)
    if way == 0:
        path.write_bytes(data[: chance.randrange(len(data) - 2)])
    elif way == 1:
        path.write_bytes(b"\0" * len(data))
    elif way == 2:
        path.write_text(json.dumps(json.loads(data) | {"schema_version": 99}))
    else:
        path.unlink()
