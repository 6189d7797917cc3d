"""A run folder while one process works on it: created, locked, committed to, cleaned. Valid at every instant."""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from batchgen.errors import RunError
from batchgen.io.events import EVENTS, EVENTS_FOLDER
from batchgen.io.hashing import ROW_HASH, shard_digest
from batchgen.io.manifest import (
    FILE_NAME,
    ROWS,
    Manifest,
    ReuseRecord,
    ShardRecord,
    Tally,
    part_name,
    read_manifest,
    write_manifest,
)
from batchgen.io.object_store import ObjectStore
from batchgen.io.writer import TEMPORARY, row_keys_json, shard_bytes, sync_folder, write_atomically, writing
from batchgen.places import Place

EVIDENCE = "evidence"
_PART = re.compile(r"part-\d{5,}\.parquet")
_PROBE = re.compile(r"probe-(\d{3,})\.json")


def evidence_files(run: Place) -> list[Place]:
    """Those of probes that failed, the earliest first."""
    folder = run / EVIDENCE
    there: list[Place] = [*folder.iterdir()] if folder.is_dir() else []
    return sorted((file for file in there if _PROBE.fullmatch(file.name)), key=_number)


def _number(file: Place) -> int:
    """Of a file of evidence."""
    match = _PROBE.fullmatch(file.name)
    assert match
    return int(match[1])


class Store(Protocol):
    """How a run is written where it lies, by one process at a time. Names are relative to the run."""

    own: tuple[str, ...]  # names that are neither the run's nor a stranger's

    def read_manifest(self) -> Manifest | None: ...

    def write_manifest(self, manifest: Manifest) -> None: ...

    def write(self, name: str, data: bytes | memoryview) -> None:
        """A file as a whole, over the one that is there."""

    def add(self, name: str, data: bytes | memoryview) -> None:
        """A file as a whole, where there is none."""

    def make_folder(self, name: str) -> None: ...

    def hide(self, folder: str, names: list[str]) -> None:
        """Take files out of the sight of readers."""

    def clean(self) -> None:
        """Remove what killed writes have left."""

    def close(self) -> None:
        """Let the next process in."""


class DiskStore:
    """A Store on this machine: an exclusive flock, and files that are renamed when they are whole."""

    own: tuple[str, ...] = ()

    def __init__(self, path: Path, lock: int) -> None:
        self._path, self._lock = path, lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises RunError: not a folder, held by another process."""
        if path.exists() and not path.is_dir():
            raise RunError("is a file, and a run is a folder", where=str(path))
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunError("another process is writing to this run", where=str(path)) from None
        return cls(path, lock)

    def read_manifest(self) -> Manifest | None:
        return read_manifest(self._path) if (self._path / FILE_NAME).exists() else None

    def write_manifest(self, manifest: Manifest) -> None:
        write_manifest(self._path, manifest)

    def write(self, name: str, data: bytes | memoryview) -> None:
        write_atomically(self._path / name, data)

    add = write

    def make_folder(self, name: str) -> None:
        with writing(self._path / name):
            (self._path / name).mkdir(exist_ok=True)

    def hide(self, folder: str, names: list[str]) -> None:
        place = self._path / folder
        with writing(place):
            for name in names:
                (place / name).rename(place / f".{name}.untrusted")
            sync_folder(place)

    def clean(self) -> None:
        for folder in (self._path, self._path / ROWS, self._path / EVIDENCE):
            if folder.is_dir():
                for file in folder.iterdir():
                    if TEMPORARY.fullmatch(file.name):
                        with writing(file):
                            file.unlink()

    def close(self) -> None:
        os.close(self._lock)


class RunFolder:
    """The one writer of a run. Made by `open`; closing it, or the end of the process, lets the next one in.

    `manifest` is what is on disk, None before `start`.
    """

    def __init__(self, path: Place, store: Store) -> None:
        self.path = path
        self._store = store
        self.manifest: Manifest | None = None

    @classmethod
    def open(cls, path: Place) -> Self:
        """Take hold of the run at `path`, or of a new or empty folder for one.

        Leftovers of killed writes are removed. Raises RunError: not a folder, not a run and not empty, held by another
        process, not readable, of another version; a store that cannot be used.
        """
        folder = cls(path, DiskStore.open(path) if isinstance(path, Path) else ObjectStore.open(path))
        try:
            folder.manifest = folder._store.read_manifest()
            if folder.manifest is None and (strangers := folder._strangers()):
                raise RunError(
                    f"is not a run and not empty: it holds {', '.join(strangers[:3])}",
                    where=str(path),
                    hint="choose a new folder, or the folder of a run to go on with",
                )
            folder._store.clean()
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def started(self) -> Manifest:
        """The manifest, after `start`."""
        assert self.manifest is not None
        return self.manifest

    def start(self, manifest: Manifest, job_yaml: bytes) -> None:
        """Make the folder a run of which nothing is done yet."""
        self._store.make_folder(ROWS)
        self._store.write("job.yaml", job_yaml)
        self.manifest = manifest  # first, for whoever is interrupted once the file is there
        self._write(manifest)

    def keep(self, trusted: Collection[int]) -> None:
        """Forget all shards but these, and take part files of others out of the sight of readers.

        They are renamed to a hidden name, never deleted: an edited file may be someone's work.
        """
        manifest = self.started
        kept = manifest.with_shards(shard for shard in manifest.shards if shard.index in trusted)
        if kept != manifest:  # also where its counts were not those of its shards
            self._write(kept)
        named = {part_name(index) for index in trusted}
        self._store.make_folder(ROWS)
        with writing(self.path / ROWS):
            there = [file.name for file in (self.path / ROWS).iterdir() if _PART.fullmatch(file.name)]
        self._store.hide(ROWS, [name for name in there if f"{ROWS}/{name}" not in named])

    def commit(self, rows: range, table: pa.Table, probes: int = 0, reused: tuple[int, ...] = ()) -> None:
        """Add the shard that holds all samples of the input rows `rows`. On return it is durable.

        `probes` of its samples were made twice, and were equal; `reused` are from each of the runs that were named.
        """
        manifest = self.started
        index = rows.start // manifest.plan.rows_per_shard
        keys = row_keys_json(table["row_key"].to_pylist()[:: manifest.plan.n])
        self._store.add(part_name(index), shard_bytes(table, keys))
        shard = ShardRecord(
            index=index,
            start=rows.start,
            stop=rows.stop,
            digest=shard_digest(bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()),
            keys_digest=hashlib.sha256(keys).hexdigest(),
            tally=Tally.of(table),
            probes=probes,
            reused=reused,
        )
        self._write(manifest.with_shard(shard))

    def finish(self, root: str) -> None:
        self._write(replace(self.started, root=root))

    def record(self, run_config: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
        """How and by what the rows from here on are made; written with the next commit."""
        self.manifest = replace(self.started, run_config=run_config, engine=engine)

    def name_source(self, run: ReuseRecord) -> int:
        """The place of `run` among those of which samples are taken; written with the next commit."""
        named = self.started.reuse
        if run not in named:
            self.manifest = replace(self.started, reuse=(*named, run))
        return self.started.reuse.index(run)

    @property
    def num_evidence(self) -> int:
        """Probes that failed, of all processes that worked on this run."""
        return len(self._evidence())

    def keep_evidence(self, facts: Mapping[str, Any]) -> Place:
        """Write what is known of a probe that failed, as JSON, beside that of earlier ones. The path of the file."""
        name = f"{EVIDENCE}/probe-{max(self._evidence(), default=0) + 1:03}.json"
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items())
        self._store.make_folder(EVIDENCE)
        self._store.add(name, f"{{\n{lines}\n}}\n".encode())
        return self.path / name

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, manifest: Manifest) -> None:
        self._store.write_manifest(manifest)
        self.manifest = manifest

    def _evidence(self) -> list[int]:
        return [_number(file) for file in evidence_files(self.path)]

    def _strangers(self) -> list[str]:
        """What a run that was killed before its first manifest cannot have left."""
        own = {"job.yaml", ROWS, EVENTS, EVENTS_FOLDER, EVIDENCE, *self._store.own}
        found = [file.name for file in self.path.iterdir() if file.name not in own]
        rows = self.path / ROWS
        found += [f"{ROWS}/{file.name}" for file in (rows.iterdir() if rows.is_dir() else ())]
        return sorted(name for name in found if not TEMPORARY.fullmatch(Path(name).name))
