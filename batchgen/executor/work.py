"""Shards on their way to replicas and back: as rows to ask, and as tables of samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Self

import pyarrow as pa

from batchgen.errors import BatchgenError, EngineError
from batchgen.executor.open_shards import OpenShard, Timed
from batchgen.executor.probes import ProbeFailed, SampleId
from batchgen.executor.reuse import KnownSamples, Reuse, ReusedRow
from batchgen.io.manifest import Tally
from batchgen.io.reader import InputRow, Inputs, passthrough_batches, read_rows
from batchgen.io.schema import rows_to_table
from batchgen.plan import Shard
from batchgen.records import SamplingParams


@dataclass(frozen=True, slots=True)
class Work:
    """To a replica: a shard to make."""

    shard: Shard
    rows: tuple[InputRow, ...]
    known: tuple[KnownSamples, ...]  # of each row
    passthrough: pa.Table
    schema: pa.Schema  # of its output


@dataclass(frozen=True, slots=True)
class Told:
    """How far a replica is: samples that have ended since it started, in open shards too.

    Samples and tokens are those that it made. `reused` are samples of earlier runs that were whole, and no others;
    `scored` are samples of those runs whose logprobs it made.
    """

    samples: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    reused: int = 0
    scored: int = 0

    @classmethod
    def of(cls, tally: Tally, reused: Sequence[ReusedRow] = ()) -> Self:
        """Of all samples of a shard; some are `reused`."""
        whole = [row for row in reused if not row.is_scored]
        return cls(
            tally.rows - len(whole),
            tally.error,
            tally.prompt_tokens - sum(len(row.prompt_token_ids or ()) for row in whole),
            tally.output_tokens - sum(len(row.completion.token_ids) for row in whole),
            len(whole),
            len(reused) - len(whole),
        )

    def __add__(self, other: "Told") -> "Told":
        return Told(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: "Told") -> "Told":
        return Told(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Made:
    """From a replica: a shard whose samples are all there, and whose probes have agreed."""

    shard: Shard
    table: pa.Table
    probes: int
    slowest: tuple[Timed, ...]
    reused: tuple[int, ...] = ()  # samples from each of the runs that the manifest names
    told: Told = Told()  # what was told of its samples

    @classmethod
    def of(cls, complete: OpenShard, params: SamplingParams, schema: pa.Schema) -> Self:
        """The samples as rows of the output, with their hashes."""
        rows = complete.rows
        table = rows_to_table(rows, complete.passthrough, params, schema)
        found = [row for row in rows if isinstance(row, ReusedRow)]
        runs = [row.run for row in found]
        reused = tuple(runs.count(run) for run in range(max(runs, default=-1) + 1))
        return cls(complete.shard, table, complete.probes, complete.slowest, reused, Told.of(Tally.of(table), found))


@dataclass(frozen=True, slots=True)
class Started:
    """From a replica, first of all: what its engine says of itself, and where it runs."""

    fingerprint: Mapping[str, str]
    about: Mapping[str, Any]
    host: Mapping[str, Any]  # JSON: of executor.host, and node, pid


@dataclass(frozen=True, slots=True)
class Failure:
    """From a replica, last of all: why it can make no more."""

    error: BatchgenError
    is_loss: bool  # of a machine or its processes: others may go on. Else the job cannot
    evidence: Mapping[str, Any] | None = None  # JSON, of a probe that differed
    probe: SampleId | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """As it can travel to the driver."""
        if isinstance(error, ProbeFailed):
            asked = error.request
            plain = BatchgenError(error.message, where=error.where, hint=error.hint)
            return cls(plain, False, error.evidence, (asked.row_key, asked.sample_index))
        if isinstance(error, BatchgenError):
            plain = type(error)(error.message, where=error.where, hint=error.hint)
            return cls(plain, isinstance(error, EngineError))
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(EngineError(text, hint="this is a fault in batchgen; what is committed is valid"), True)


@dataclass(frozen=True, slots=True)
class News:
    """From a replica: what has happened since the last news."""

    told: Told
    made: tuple[Made, ...] = ()
    proven: tuple[SampleId, ...] = ()  # probes that agreed
    deaths: tuple[str, ...] = ()  # of processes of its engine
    failure: Failure | None = None


class ShardReader:
    """The input as work. Shards that follow each other are read in one pass, so no prompt is read twice for them."""

    def __init__(self, inputs: Inputs, schema: pa.Schema, reuse: Reuse | None = None) -> None:
        """`schema`: of the output."""
        self._inputs, self._schema, self._reuse = inputs, schema, reuse or Reuse()
        self._at = -1
        self._rows: Iterator[InputRow] = iter(())
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._table = inputs.passthrough.empty_table()

    def read(self, shard: Shard) -> Work:
        """Raises InputError, and RunError when the store of an earlier run fails."""
        if shard.start != self._at:
            stop = self._inputs.num_rows
            self._rows = read_rows(self._inputs, shard.start, stop)
            self._batches = passthrough_batches(self._inputs, shard.start, stop)
            self._table = self._inputs.passthrough.empty_table()
        self._at = -1  # until it is read whole
        pairs = list(self._reuse.beside(islice(self._rows, shard.num_rows)))
        while len(self._inputs.passthrough) and self._table.num_rows < shard.num_rows:
            self._table = pa.concat_tables([self._table, pa.Table.from_batches([next(self._batches)])])
        carried = self._table.slice(0, shard.num_rows).combine_chunks()
        self._table = self._table.slice(shard.num_rows)
        self._at = shard.stop
        rows, known = (tuple(part) for part in zip(*pairs, strict=True))
        return Work(shard, rows, known, carried, self._schema)
