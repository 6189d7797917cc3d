"""The shards that are being worked on: what was asked of the engine, what has come back, what is full."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchgen.errors import BatchgenError
from batchgen.io.schema import Row
from batchgen.plan import Shard
from batchgen.records import Completion, Request, SamplingParams


@dataclass(slots=True)
class _OpenShard:
    shard: Shard
    samples: list[Row | None]  # in input order, sample_index within
    missing: int
    passthrough: pa.Table


class OpenShards:
    """Every sample from the moment its row is read until its shard is taken out, full.

    Raises BatchgenError, naming the sample, for a completion that came twice, was never asked for, or is not whole.
    """

    def __init__(self, params: SamplingParams, on_row: Callable[[Row], None]) -> None:
        self._n, self._logprobs = params.n, params.logprobs
        self._on_row = on_row
        self._shards: dict[int, _OpenShard] = {}  # by index
        self._asked: dict[tuple[str, int], tuple[int, int, Request]] = {}  # -> (shard index, position in it, request)
        self._full: list[int] = []
        self.num_samples = 0  # in open shards

    @property
    def num_shards(self) -> int:
        return len(self._shards)

    def open(self, shard: Shard, passthrough: pa.Table) -> None:
        size = shard.num_rows * self._n
        self._shards[shard.index] = _OpenShard(shard, [None] * size, size, passthrough)
        self.num_samples += size

    def ask(self, shard: int, position: int, request: Request) -> Request:
        """Note that `request` is on its way: sample `position` of the shard with this index."""
        self._asked[request.row_key, request.sample_index] = shard, position, request
        return request

    def answer(self, completion: Completion) -> None:
        """Take the engine's answer to a request."""
        name = completion.row_key, completion.sample_index
        if name not in self._asked:
            came = any(
                row is not None and (row.completion.row_key, row.completion.sample_index) == name
                for shard in self._shards.values()
                for row in shard.samples
            )
            fault = "came twice" if came else "was not asked for, or its shard is long done"
            raise BatchgenError(f"a completion {fault}", where=_name(name), hint=_OURS)
        shard, position, request = self._asked.pop(name)
        self._check(completion)
        self.place(shard, position, Row(request.seed, request.prompt_token_ids, completion))

    def place(self, shard: int, position: int, row: Row) -> None:
        """Put a finished sample in its place."""
        opened = self._shards[shard]
        assert opened.samples[position] is None
        opened.samples[position] = row
        opened.missing -= 1
        self._on_row(row)
        if not opened.missing:
            self._full.append(shard)

    def take_full(self) -> Iterator[tuple[Shard, list[Row], pa.Table]]:
        """(shard, samples, passthrough) of each full shard; it is no longer open."""
        while self._full:
            full = self._shards.pop(self._full.pop(0))
            self.num_samples -= len(full.samples)
            yield full.shard, [row for row in full.samples if row is not None], full.passthrough

    def check_answered(self) -> None:
        """The engine says it is done: is it?"""
        if self._asked:
            names = ", ".join(_name(name) for name in list(self._asked)[:3])
            raise BatchgenError(f"{len(self._asked)} completions never came, among them {names}", hint=_OURS)

    def _check(self, completion: Completion) -> None:
        if completion.finish_reason == "error":
            whole = completion.error_code is not None
        else:
            parts = (completion.logprobs, completion.top_logprobs_ids, completion.top_logprobs_values)
            wanted = 0 if self._logprobs is None else 3 if self._logprobs else 1
            whole = all(part is not None and len(part) == len(completion.token_ids) for part in parts[:wanted])
        if not whole:
            where = _name((completion.row_key, completion.sample_index))
            raise BatchgenError("a completion is not whole", where=where, hint=_OURS)


_OURS = "this is a fault in batchgen's engine; what is committed is valid"


def _name(sample: tuple[str, int]) -> str:
    return f"row {sample[0]!r} sample {sample[1]}"
