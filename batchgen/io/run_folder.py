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
from typing import Any, Self

import pyarrow as pa

from batchgen.errors import RunError
from batchgen.io.events import EVENTS
from batchgen.io.hashing import ROW_HASH, shard_digest
from batchgen.io.manifest import (
    FILE_NAME,
    ROWS,
    Manifest,
    ShardRecord,
    Tally,
    part_name,
    read_manifest,
    write_manifest,
)
from batchgen.io.writer import TEMPORARY, row_keys_json, sync_folder, write_atomically, write_shard, writing

EVIDENCE = "evidence"
_PART = re.compile(r"part-\d{5,}\.parquet")
_PROBE = re.compile(r"probe-(\d{3,})\.json")


class RunFolder:
    """The one writer of a run. Made by `open`; closing it, or the end of the process, lets the next one in.

    `manifest` is what is on disk, None before `start`.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self.manifest: Manifest | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take hold of the run at `path`, or of a new or empty folder for one.

        Leftovers of killed writes are removed. Raises RunError: not a folder, not a run and not empty, held by another
        process, not readable, of another version.
        """
        if path.exists() and not path.is_dir():
            raise RunError("is a file, and a run is a folder", where=str(path))
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        folder = cls(path, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / FILE_NAME).exists():
                folder.manifest = read_manifest(path)
            elif strangers := folder._strangers():
                raise RunError(
                    f"is not a run and not empty: it holds {', '.join(strangers[:3])}",
                    where=str(path),
                    hint="choose a new folder, or the folder of a run to go on with",
                )
            folder._remove_temporaries()
        except BlockingIOError:
            folder.close()
            raise RunError("another process is writing to this run", where=str(path)) from None
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
        with writing(self.path):
            (self.path / ROWS).mkdir(exist_ok=True)
        write_atomically(self.path / "job.yaml", job_yaml)
        self._write(manifest)

    def keep(self, trusted: Collection[int]) -> None:
        """Forget all shards but these, and take part files of others out of the sight of readers.

        They are renamed to a hidden name, never deleted: an edited file may be someone's work.
        """
        manifest = self.started
        if len(trusted) < len(manifest.shards):
            self._write(manifest.with_shards(shard for shard in manifest.shards if shard.index in trusted))
        named = {Path(part_name(index)).name for index in trusted}
        rows = self.path / ROWS
        with writing(rows):
            rows.mkdir(exist_ok=True)
            for file in rows.iterdir():
                if _PART.fullmatch(file.name) and file.name not in named:
                    file.rename(file.with_name(f".{file.name}.untrusted"))
            sync_folder(rows)

    def commit(self, rows: range, table: pa.Table, probes: int = 0) -> None:
        """Add the shard that holds all samples of the input rows `rows`. On return it is durable.

        `probes` of its samples were made twice, and were equal.
        """
        manifest = self.started
        index = rows.start // manifest.plan.rows_per_shard
        keys = row_keys_json(table["row_key"].to_pylist()[:: manifest.plan.n])
        write_shard(self.path / part_name(index), table, keys)
        shard = ShardRecord(
            index=index,
            start=rows.start,
            stop=rows.stop,
            digest=shard_digest(bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()),
            keys_digest=hashlib.sha256(keys).hexdigest(),
            tally=Tally.of(table),
            probes=probes,
        )
        self._write(manifest.with_shards([*manifest.shards, shard]))

    def finish(self, root: str) -> None:
        self._write(replace(self.started, root=root))

    def record(self, run_config: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
        """How and by what the rows from here on are made; written with the next commit."""
        self.manifest = replace(self.started, run_config=run_config, engine=engine)

    @property
    def num_evidence(self) -> int:
        """Probes that failed, of all processes that worked on this run."""
        return len(self._evidence())

    def keep_evidence(self, facts: Mapping[str, Any]) -> Path:
        """Write what is known of a probe that failed, as JSON, beside that of earlier ones. The path of the file."""
        folder = self.path / EVIDENCE
        number = max(self._evidence(), default=0) + 1
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items())
        with writing(folder):
            folder.mkdir(exist_ok=True)
        path = folder / f"probe-{number:03}.json"
        write_atomically(path, f"{{\n{lines}\n}}\n".encode())
        return path

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, manifest: Manifest) -> None:
        write_manifest(self.path, manifest)
        self.manifest = manifest

    def _evidence(self) -> list[int]:
        folder = self.path / EVIDENCE
        names = (_PROBE.fullmatch(file.name) for file in (folder.iterdir() if folder.is_dir() else ()))
        return [int(name[1]) for name in names if name]

    def _strangers(self) -> list[str]:
        """What a run that was killed before its first manifest cannot have left."""
        own = {"job.yaml", ROWS, EVENTS, EVIDENCE}
        found = [file.name for file in self.path.iterdir() if file.name not in own]
        rows = self.path / ROWS
        found += [f"{ROWS}/{file.name}" for file in (rows.iterdir() if rows.is_dir() else ())]
        return sorted(name for name in found if not TEMPORARY.fullmatch(Path(name).name))

    def _remove_temporaries(self) -> None:
        for folder in (self.path, self.path / ROWS, self.path / EVIDENCE):
            if folder.is_dir():
                for file in folder.iterdir():
                    if TEMPORARY.fullmatch(file.name):
                        with writing(file):
                            file.unlink()
