"""manifest.json: what a run is, which of its shards are done, and its root."""

import hashlib
import json
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from operator import add, attrgetter
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
import rfc8785
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from batchgen.errors import RunError
from batchgen.io.schema import SCHEMA_VERSION
from batchgen.io.writer import write_atomically
from batchgen.object_path import StoreError
from batchgen.places import Place

FILE_NAME = "manifest.json"
ROWS = "rows"
_MANY = 1 << 53  # RFC 8785 has no larger integers


def part_name(index: int) -> str:
    """The file of a shard, below the run folder."""
    return f"{ROWS}/part-{index:05d}.parquet"


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over rows. `error` counts both the status and the finish reason; ok rows are stop + length."""

    rows: int = 0
    stop: int = 0
    length: int = 0
    error: int = 0
    prompt_tokens: int = 0  # of every sample: n samples count their prompt n times
    output_tokens: int = 0

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Of output rows."""
        reasons = {entry["values"]: entry["counts"] for entry in pc.value_counts(table["finish_reason"]).to_pylist()}
        tokens = [pc.sum(table[name], min_count=0).as_py() for name in ("num_prompt_tokens", "num_output_tokens")]
        return cls(table.num_rows, *(reasons.get(reason, 0) for reason in ("stop", "length", "error")), *tokens)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, _TALLY(self), _TALLY(other)))


_TALLY = attrgetter(*(field.name for field in fields(Tally)))


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A committed shard: samples of the input rows start .. stop-1, all n of each."""

    index: int
    start: int
    stop: int
    digest: str  # SHA-256 of the leaves
    keys_digest: str  # SHA-256 of the file's batchgen.row_keys
    tally: Tally
    probes: int  # of its samples: made a second time while the job ran, and equal bit for bit
    reused: tuple[int, ...] = ()  # of its samples, from each of the runs of `reuse`

    def __hash__(self) -> int:
        return hash((self.index, self.digest))


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input file, as it was read."""

    path: str
    sha256: str  # of the file; in a run, of the shard's leaves
    rows: int  # selected
    run_root: str | None = None  # of the run that made it, where the job names a run


@dataclass(frozen=True, slots=True)
class ReuseRecord:
    """A run from which samples were taken."""

    path: str  # seen from the run folder
    root: str | None  # null: it was not finished then


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """How the rows are cut into shards. Fixed when the run starts; a resumed run keeps it."""

    rows: int  # of input
    n: int  # samples of each
    rows_per_shard: int
    digest: str

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that no plan has."""
        if not (0 <= self.rows < _MANY and 1 <= self.n < _MANY and 1 <= self.rows_per_shard < _MANY):
            raise ValueError("not a plan of rows")

    @property
    def num_samples(self) -> int:
        return self.rows * self.n

    @property
    def num_shards(self) -> int:
        return -(-self.rows // self.rows_per_shard)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of a run. `root` comes with the last shard."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid")

    schema_version: int
    batchgen_version: str
    fingerprint: Mapping[str, str]  # job_fingerprint, inputs_digest, and what the engine names: weights_digest, ...
    spec: Mapping[str, JsonValue]  # resolved; job_fingerprint is its hash
    job_yaml_sha256: str
    inputs: tuple[InputRecord, ...]
    plan: PlanRecord
    columns: tuple[tuple[str, JsonValue], ...]  # name and logical type of each, in order
    run_config: Mapping[str, JsonValue]  # of the process that wrote last; changes no bit
    engine: Mapping[str, JsonValue]  # what the engine of that process said of itself at its start
    root: str | None = None
    counts: Tally = Tally()
    reuse: tuple[ReuseRecord, ...] = ()  # of no influence on any row: without them all would have been made
    shards: tuple[ShardRecord, ...] = ()  # by index

    @property
    def finished(self) -> bool:
        return self.root is not None and len(self.shards) == self.plan.num_shards

    @property
    def probes(self) -> int:
        """Of the whole run, over all processes that made it. All were equal, or their shard were not there."""
        return sum(shard.probes for shard in self.shards)

    @property
    def reused(self) -> list[tuple[ReuseRecord, int]]:
        """The samples from each of the runs of `reuse`."""
        return [
            (run, sum(shard.reused[at] for shard in self.shards if at < len(shard.reused)))
            for at, run in enumerate(self.reuse)
        ]

    def with_shard(self, shard: ShardRecord) -> "Manifest":
        """One more, without a look at those that are there."""
        ordered = list(self.shards)
        insort(ordered, shard, key=lambda shard: shard.index)
        return replace(self, shards=tuple(ordered), counts=self.counts + shard.tally)

    def with_shards(self, shards: Iterable[ShardRecord]) -> "Manifest":
        """These shards and no others, with their counts."""
        ordered = tuple(sorted(shards, key=lambda shard: shard.index))
        return replace(self, shards=ordered, counts=sum((shard.tally for shard in ordered), Tally()))

    def contradictions(self) -> Iterator[str]:
        """Where the manifest does not agree with itself."""
        try:
            job_fingerprint = hashlib.sha256(rfc8785.dumps(dict(self.spec))).hexdigest()
        except rfc8785.CanonicalizationError:  # of a number that no spec holds
            job_fingerprint = None
        if job_fingerprint is None or job_fingerprint != self.fingerprint.get("job_fingerprint"):
            yield "job_fingerprint is not that of its spec"
        if self.with_shards(self.shards).counts != self.counts:
            yield "its counts are not the sum of those of its shards"
        seen = set()
        for shard in self.shards:
            start = shard.index * self.plan.rows_per_shard
            stop = min(start + self.plan.rows_per_shard, self.plan.rows)
            if (shard.start, shard.stop) != (start, stop) or start >= stop or shard.index in seen:
                yield f"shard {shard.index} is not one of the plan's"
            seen.add(shard.index)
            if not 0 <= shard.probes <= shard.tally.rows:
                yield f"shard {shard.index} has {shard.probes} probes of {shard.tally.rows} rows"
            is_possible = min(shard.reused, default=0) >= 0 and sum(shard.reused) <= shard.tally.rows
            if not is_possible or len(shard.reused) > len(self.reuse):
                yield f"shard {shard.index} has samples of earlier runs that it cannot have"

    def to_json(self) -> str:
        """The last key is `shards`, one a line."""
        parts = {f.name: _indented(getattr(self, f.name)) for f in fields(self) if f.name not in ("inputs", "shards")}
        parts["inputs"] = _inputs_json(self.inputs)
        if not self.reuse:
            del parts["reuse"]
        parts["shards"] = f"[{','.join(map(_line, self.shards))}]"
        text = ",\n".join(f'  "{f.name}": {parts[f.name]}' for f in fields(self) if f.name in parts)
        return f"{{\n{text}\n}}\n"


def _indented(value: object) -> str:
    """As a field of a JSON object that is indented by two."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=asdict).replace("\n", "\n  ")


# A manifest is written after each shard: most of it is what it was the last time.
@lru_cache(maxsize=4)
def _inputs_json(inputs: tuple[InputRecord, ...]) -> str:
    files = [asdict(file) for file in inputs]
    return _indented([{name: value for name, value in file.items() if value is not None} for file in files])


@lru_cache(maxsize=1 << 14)
def _line(shard: ShardRecord) -> str:
    values = asdict(shard)
    if not shard.reused:
        del values["reused"]
    return f"\n    {json.dumps(values)}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of the run at `folder`. Raises RunError when it cannot be written."""
    write_atomically(folder / FILE_NAME, manifest.to_json().encode())


def read_manifest(folder: Place) -> Manifest:
    """Raises RunError: no manifest, not one that this version reads, or damaged."""
    path = folder / FILE_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise RunError("is not a run folder: it has no manifest.json", where=str(folder)) from None
    except StoreError:
        raise
    except OSError as error:
        raise RunError(f"cannot read: {error.strerror}", where=str(path)) from error
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: Place) -> Manifest:
    """The manifest with these bytes, read from `path`. Raises RunError as `read_manifest` does."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"is damaged, for it is not JSON: {error}", where=str(path), hint=_DAMAGED) from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is not int:
        raise RunError("is damaged: it has no schema_version", where=str(path), hint=_DAMAGED)
    if version != SCHEMA_VERSION:
        age = "newer" if version > SCHEMA_VERSION else "older"
        raise RunError(
            f"has schema version {version}, {age} than {SCHEMA_VERSION}, which this batchgen reads",
            where=str(path),
            hint=f"batchgen {document.get('batchgen_version')} began the run: use that, or make it again elsewhere",
        )
    try:
        return _adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"is damaged: {first['msg'].removeprefix('Value error, ')}", where=f"{path}: {key}", hint=_DAMAGED
        ) from None


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of manifest.json."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "batchgen manifest"}
    return _adapter().json_schema() | head


_DAMAGED = "it is only ever replaced as a whole, so something else has changed it"


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
