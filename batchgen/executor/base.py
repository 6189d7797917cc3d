"""How rows are made, whoever makes them. Start reading at `run_shards`."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

import pyarrow as pa

from batchgen.errors import RowError
from batchgen.executor.open_shards import OpenShard, OpenShards
from batchgen.executor.reuse import KnownSamples, Reuse, ReusedRow, fitting
from batchgen.io.hashing import params_hash
from batchgen.io.reader import InputRow, Inputs, passthrough_batches, read_rows
from batchgen.io.schema import Row
from batchgen.plan import Shard
from batchgen.records import Completion, Request, SamplingParams
from batchgen.seeds import sample_seed
from batchgen.spec import JobSpec
from batchgen.text.asking import Asked, RowParams, asked_by


class Proven(Protocol):
    """What an engine says of itself once it has started."""

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What else the bytes depend on: weights_digest, tokenizer_digest, numerics, kernel_set, ..."""

    @property
    def about(self) -> Mapping[str, Any]:
        """JSON: how it started, and on what. The bytes depend on none of it."""


class Engine(Proven, Protocol):
    """Where completions come from: one for each request, in any order, each a function of its request alone."""

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        """Reads requests as it has room for them; closed early, it lets go of all."""


@dataclass(frozen=True, slots=True)
class Job:
    """A JobSpec and all that it names, at hand."""

    spec: JobSpec
    job_yaml: bytes  # as given
    inputs: Inputs
    params: SamplingParams  # of every row, but for what it says itself
    build_prompt: Callable[..., Sequence[int]]  # InputRow, and its max_tokens if it says it -> token ids, or RowError
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)  # of further files that bits depend on
    check_own: Callable[[SamplingParams], None] = lambda _: None  # of a row that says some itself; raises RowError
    own_params: RowParams = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_params", RowParams(self.params, self.check_own))

    def asked_by(self, row: InputRow) -> Asked:
        """What a row of the input asks."""
        return asked_by(row, self.own_params, self.build_prompt)

    def fingerprint(self, engine: Proven) -> dict[str, str]:
        """All that the rows are a function of; two runs that differ in any of these are not the same run."""
        return {
            "job_fingerprint": self.spec.fingerprint(),
            "inputs_digest": self.inputs.digest,
            "params_hash": params_hash(self.params),
            **self.digests,
            **engine.fingerprint,
        }


@dataclass(slots=True)
class Progress:
    """Where a job is. Tokens and seconds are those of this process; samples are those of the run."""

    samples: int
    done: int  # committed earlier, or finished
    resumed: int  # of `done`: committed before this process began
    reused: int = 0  # of `done`: of earlier runs, whole. Their tokens are not counted
    scored: int = 0  # of `done`: of earlier runs, with logprobs that were computed here
    errors: int = 0  # of this process
    prompt_tokens: int = 0
    output_tokens: int = 0
    started: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.started

    def count(self, row: Row) -> None:
        self.done += 1
        if isinstance(row, ReusedRow):
            self.scored += row.is_scored
            self.reused += not row.is_scored
            if not row.is_scored:
                return
        self.errors += row.completion.finish_reason == "error"
        self.prompt_tokens += len(row.prompt_token_ids or ())
        self.output_tokens += len(row.completion.token_ids)


def run_shards(
    job: Job,
    shards: Sequence[Shard],
    engine: Engine,
    held: OpenShards,
    commit: Callable[[OpenShard], None],
    reuse: Reuse | None = None,
) -> None:
    """Make all samples of `shards`, which ascend, but for those of `reuse`; `commit` each as soon as it is complete.

    Requests flow into the engine across shard boundaries, so it never waits for a shard to end. `held` bounds how much
    is open: when a very long row keeps its shard open while others pile up behind it, the engine is left to run dry
    before it gets more. Between the samples go the probes, which are made a second time: a shard is complete when
    all of its samples are there and all of its probes agreed.
    """
    rows = _requests_of_rows(job, shards, held, reuse or Reuse())
    left = sum(shard.num_rows for shard in shards)

    def commit_complete() -> None:
        nonlocal left
        for complete in held.take_complete():
            commit(complete)
            left -= complete.shard.num_rows

    while left:
        for completion in engine.generate(_while_room(rows, held, commit_complete)):
            held.answer(completion)
            if held.has_complete:
                commit_complete()
        held.check_answered()
        commit_complete()


def _while_room(
    rows: Iterator[list[Request]], held: OpenShards, commit_complete: Callable[[], None]
) -> Iterator[Request]:
    """What the engine takes next, asked whenever it can take more. A shard may need nothing of the engine."""
    while held.has_room:
        if held.has_complete:
            commit_complete()
        yield from held.probes.due()
        requests = next(rows, None)
        if requests is None:
            break
        for request in requests:
            yield held.take(request)
    yield from held.probes.rest()


def _requests_of_rows(job: Job, shards: Sequence[Shard], held: OpenShards, reuse: Reuse) -> Iterator[list[Request]]:
    """The requests of each input row; none for a row whose prompt fails, whose samples are done at once."""
    for stretch in _stretches(shards):
        start, stop = stretch[0].start, stretch[-1].stop
        rows = read_rows(job.inputs, start, stop)
        carried = _cut(passthrough_batches(job.inputs, start, stop), job.inputs.passthrough, stretch)
        for shard, passthrough in zip(stretch, carried, strict=True):
            held.open(shard, passthrough)
            for offset, (row, known) in enumerate(reuse.beside(islice(rows, shard.num_rows))):
                yield ask_row(job, row, known, held, (shard.index, offset * job.params.n))


def ask_row(job: Job, row: InputRow, known: KnownSamples, held: OpenShards, place: tuple[int, int]) -> list[Request]:
    """The requests of an input row; none if its prompt fails. `place`: its shard, and where there it begins.

    `known`: samples of earlier runs, of which those are taken that answer what would be asked.
    """
    shard, position = place
    key, samples = row.row_key, range(job.params.n)
    seeds = [sample_seed(job.spec.seed, key, index) for index in samples]
    sampling, params, ids = job.asked_by(row)
    if isinstance(ids, RowError):
        for index in samples:
            failed = Completion(key, index, (), "", "error", error_code=ids.code, error_message=str(ids))
            held.place(shard, position + index, Row(seeds[index], None, failed, sampling=sampling))
        return []
    words = job.bad_words_token_ids
    asked = [Request(key, index, seeds[index], ids, params, words, sampling=sampling) for index in samples]
    if not known:
        return [held.ask(shard, position + request.sample_index, request) for request in asked]
    return list(_with_known(asked, known, held, place))


def _with_known(
    asked: Iterable[Request], known: KnownSamples, held: OpenShards, place: tuple[int, int]
) -> Iterator[Request]:
    """What is still to be asked of the engine."""
    shard, position = place
    for request in asked:
        at, one = position + request.sample_index, fitting(known.get(request.sample_index, ()), request)
        if one is None:
            yield held.ask(shard, at, request)
        elif one.lacks_logprobs:
            yield held.ask(shard, at, request, one)
        elif probe := held.reuse(shard, at, request, one):
            yield probe


def _stretches(shards: Sequence[Shard]) -> Iterator[list[Shard]]:
    """Shards that follow each other, together: they are read in one pass."""
    stretch: list[Shard] = []
    for shard in shards:
        if stretch and stretch[-1].stop != shard.start:
            yield stretch
            stretch = []
        stretch.append(shard)
    if stretch:
        yield stretch


def _cut(batches: Iterator[pa.RecordBatch], schema: pa.Schema, shards: Sequence[Shard]) -> Iterator[pa.Table]:
    """A stream of batches as one table for each shard."""
    table = schema.empty_table()
    for shard in shards:
        while len(schema) and table.num_rows < shard.num_rows:
            table = pa.concat_tables([table, pa.Table.from_batches([next(batches)])])
        yield table.slice(0, shard.num_rows)
        table = table.slice(shard.num_rows)
