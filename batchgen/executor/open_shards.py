"""The shards that are being worked on: what was asked of the engine, what has come back, what is complete."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from time import perf_counter

import pyarrow as pa

from batchgen.errors import BatchgenError
from batchgen.executor.probes import Probes
from batchgen.executor.reuse import Known
from batchgen.io.schema import Row
from batchgen.plan import Shard
from batchgen.records import Completion, Request, SamplingParams

_SLOWEST = 3

Timed = tuple[float, str, int, int]  # seconds from the engine's taking it to its answer, row_key, sample_index, tokens


@dataclass(slots=True)
class OpenShard:
    """A shard on its way. Complete when no sample is missing and no probe unproven."""

    shard: Shard
    samples: list[Row | None]  # in input order, sample_index within
    passthrough: pa.Table
    missing: int
    unproven: int = 0  # samples that are still to be made a second time
    probes: int = 0  # samples that were, and were equal
    slowest: tuple[Timed, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """All samples of a complete shard."""
        return [row for row in self.samples if row is not None]


@dataclass(slots=True)
class _Asked:
    request: Request
    shard: int  # index
    position: int  # in the shard
    is_probe: bool
    known: Known | None  # only its logprobs are asked for
    taken: float = 0.0  # when the engine took it


class OpenShards:
    """Every sample from the moment its row is read until its shard is taken out, complete.

    Raises BatchgenError, naming the sample, for a completion that came twice, was never asked for, or is not whole.
    """

    def __init__(self, params: SamplingParams, window: int, probes: Probes, on_row: Callable[[Row], None]) -> None:
        self._n, self._logprobs, self._prompt_logprobs = params.n, params.logprobs, params.prompt_logprobs
        self._routed = params.routed_experts
        self._window = window
        self._on_row = on_row
        self._shards: dict[int, OpenShard] = {}  # by index
        self._asked: dict[tuple[str, int], _Asked] = {}
        self._complete: list[int] = []
        self._num_samples = 0  # in open shards
        self.probes = probes

    @property
    def has_complete(self) -> bool:
        return bool(self._complete)

    @property
    def has_room(self) -> bool:
        """At most `window` samples and one shard are held."""
        return len(self._shards) < 2 or self._num_samples < self._window

    def open(self, shard: Shard, passthrough: pa.Table) -> None:
        size = shard.num_rows * self._n
        self._shards[shard.index] = OpenShard(shard, [None] * size, passthrough, missing=size)
        self._num_samples += size

    def ask(self, shard: int, position: int, request: Request, known: Known | None = None) -> Request:
        """Note that `request`, or the scoring of what is `known`, is on its way: sample `position` of this shard."""
        is_probe = self.probes.chooses(request)
        self._shards[shard].unproven += is_probe
        self._asked[request.row_key, request.sample_index] = _Asked(request, shard, position, is_probe, known)
        return request if known is None else known.scoring(request)

    def reuse(self, shard: int, position: int, request: Request, known: Known) -> Request | None:
        """Put a sample in its place that is known whole; if it is chosen as a probe, what asks for it once more."""
        is_probe = self.probes.chooses(request)
        self._shards[shard].unproven += is_probe
        self.place(shard, position, known.row(known.completion))
        return self.probes.again(request, known.completion, shard) if is_probe else None

    def take(self, request: Request) -> Request:
        """Note that the engine takes `request` now."""
        if asked := self._asked.get((request.row_key, request.sample_index)):  # else it is a probe of a known sample
            asked.taken = perf_counter()
        return request

    def answer(self, completion: Completion) -> None:
        """Take the engine's answer to a request, the first or a probe's second. Raises ProbeFailed."""
        name = completion.row_key, completion.sample_index
        asked = self._asked.pop(name, None)
        if asked is not None:
            self._first_answer(asked, completion)
        elif (shard := self.probes.answer(completion)) is not None:
            self._shards[shard].unproven -= 1
            self._shards[shard].probes += 1
            self._check_complete(shard)
        else:
            came = any(
                row is not None and (row.completion.row_key, row.completion.sample_index) == name
                for opened in self._shards.values()
                for row in opened.samples
            )
            fault = "came twice" if came else "was not asked for, or its shard is long done"
            raise BatchgenError(f"a completion {fault}", where=_name(name), hint=_OURS)

    def place(self, shard: int, position: int, row: Row) -> None:
        """Put a finished sample in its place."""
        opened = self._shards[shard]
        assert opened.samples[position] is None
        opened.samples[position] = row
        opened.missing -= 1
        self._on_row(row)
        self._check_complete(shard)

    def take_complete(self) -> Iterator[OpenShard]:
        """Each complete shard; it is no longer open."""
        while self._complete:
            complete = self._shards.pop(self._complete.pop(0))
            self._num_samples -= len(complete.samples)
            yield complete

    @property
    def is_idle(self) -> bool:
        """Whether the engine has answered all that it was asked."""
        return not self._asked and not self.probes.running()

    def check_answered(self) -> None:
        """The engine says it is done: is it?"""
        if left := [*self._asked, *self.probes.running()]:
            names = ", ".join(_name(name) for name in left[:3])
            raise BatchgenError(f"{len(left)} completions never came, among them {names}", hint=_OURS)

    def _first_answer(self, asked: _Asked, completion: Completion) -> None:
        request, opened, known = asked.request, self._shards[asked.shard], asked.known
        completion = completion if known is None else known.scored(request, completion)
        self._check_whole(completion)
        timed = perf_counter() - asked.taken, request.row_key, request.sample_index, len(completion.token_ids)
        if len(opened.slowest) < _SLOWEST or timed > opened.slowest[-1]:
            opened.slowest = tuple(nlargest(_SLOWEST, (*opened.slowest, timed)))
        self.probes.sample_ended(completion)
        if asked.is_probe:
            self.probes.hold(request, completion, asked.shard, known is not None)
        if known is None:
            row = Row(request.seed, request.prompt_token_ids, completion, sampling=request.sampling)
        else:
            row = known.row(completion)
        self.place(asked.shard, asked.position, row)

    def _check_complete(self, shard: int) -> None:
        if not self._shards[shard].missing and not self._shards[shard].unproven:
            self._complete.append(shard)

    def _check_whole(self, completion: Completion) -> None:
        if completion.finish_reason == "error":
            whole = completion.error_code is not None
        else:
            parts = (completion.logprobs, completion.top_logprobs_ids, completion.top_logprobs_values)
            wanted = 0 if self._logprobs is None else 3 if self._logprobs else 1
            size = len(completion.token_ids)
            whole = not wanted or all(part is not None and len(part) == size for part in parts[:wanted])
            whole &= self._prompt_logprobs is None or completion.prompt_logprobs is not None
            whole &= completion.kept_tokens is None or len(completion.kept_tokens) == size
            whole &= completion.routed_experts is not None or not self._routed
        if not whole:
            where = _name((completion.row_key, completion.sample_index))
            raise BatchgenError("a completion is not whole", where=where, hint=_OURS)


_OURS = "this is a fault in batchgen's engine; what is committed is valid"


def _name(sample: tuple[str, int]) -> str:
    return f"row {sample[0]!r} sample {sample[1]}"
