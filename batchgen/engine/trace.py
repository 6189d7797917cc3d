"""What each op gave for one sequence: a runner around a runner, which watches the ops and keeps digests of their rows.

A position is computed more than once when its sequence was preempted, and by another sequence when both share the
blocks of a common beginning; it may be computed in any company and chunk. All of it must give the same bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xxhash

from batchgen import kernels
from batchgen.engine.batch import Chunk, Runner, Sampled
from batchgen.engine.bits import as_bits
from batchgen.errors import EngineError
from batchgen.models.op_names import OpName
from batchgen.records import Request

Rows = list[tuple[int, int]]  # (row of an op's outputs, position)


class Place(NamedTuple):
    """One op at one position. Places in order: whatever a place's op reads was written at an earlier one."""

    position: int
    op: int  # index into the names of the ops


@dataclass(slots=True)
class Trace:
    """Digests of the outputs at each place, in the order in which they were first seen: one, if all is well."""

    names: tuple[OpName, ...]
    digests: dict[Place, list[int]] = field(default_factory=dict)
    kept: list[kernels.Outputs] = field(default_factory=list)  # the outputs themselves, at the one place asked for

    def add(self, place: Place, digest: int) -> None:
        seen = self.digests.setdefault(place, [])
        if digest not in seen:
            seen.append(digest)

    def gap(self) -> int | None:
        """The first position that no op was seen at, before one that some were: it was computed for other tokens."""
        seen = {place.position for place in self.digests}
        return next((position for position in range(max(seen, default=0)) if position not in seen), None)


def first_difference(a: Trace, b: Trace, stop: int) -> Place | None:
    """The first place before position `stop` with more than one digest, in both traces together.

    Every earlier place that both have, and so all that its op read there, is equal bit for bit.
    """
    for place in sorted(a.digests.keys() | b.digests.keys()):
        if place.position < stop and len({*a.digests.get(place, ()), *b.digests.get(place, ())}) > 1:
            return place
    return None


class Recorder:
    """Keeps digests of some rows of each step, told by `kernels.watch`."""

    def __init__(self, names: tuple[OpName, ...], keep: Place | None = None) -> None:
        self.trace = Trace(names)
        self._keep = keep
        self._rows: Rows = []
        self._drawn: Rows = []
        self._op = 0

    @contextmanager
    def step(self, rows: Rows, drawn: Rows) -> Iterator[None]:
        """One step is run inside it. Raises EngineError if its ops are not those of the names."""
        self._rows, self._drawn, self._op = rows, drawn, 0
        with kernels.watch(self._observe):
            yield
        if self._op < len(self.trace.names) - 1:
            raise EngineError(f"a step launched {self._op} ops, and the model has {len(self.trace.names)}")

    def _observe(self, op: str, outputs: kernels.Outputs) -> None:
        at, names = self._op, self.trace.names
        self._op += 1
        if at >= len(names) or names[at].op != op:
            expected = names[at].op if at < len(names) else "none"
            raise EngineError(f"op {at} of a step is {op}, and {expected} was expected")
        arrays = {name: as_bits(output) for name, output in outputs.items()}
        for row, position in self._drawn if names[at].drawn else self._rows:
            digest = xxhash.xxh3_64()
            for array in arrays.values():
                digest.update(np.ascontiguousarray(array[row]).data)
            place = Place(position, at)
            self.trace.add(place, digest.intdigest())
            if place == self._keep:
                self.trace.kept.append({name: deepcopy(output[row]) for name, output in outputs.items()})


class TracingRunner:
    """Runs what `runner` runs, and records what concerns the request `target`."""

    def __init__(self, runner: Runner, recorder: Recorder, target: Request) -> None:
        self._runner = runner
        self._recorder = recorder
        self._target = target
        self._token_ids: Sequence[int] = target.prompt_token_ids

    def step(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        """As of `runner`. Raises EngineError if the ops are not those of the names."""
        with self._recorder.step(*self._find_rows(chunks)):
            return self._runner.step(chunks)

    def _find_rows(self, chunks: Sequence[Chunk]) -> tuple[Rows, Rows]:
        """Of the target, and of other sequences as far as their tokens are those of the target."""
        rows: Rows = []
        drawn: Rows = []
        start = draws = 0
        for chunk in chunks:
            sequence = chunk.sequence
            name = (sequence.request.row_key, sequence.request.sample_index)
            if name == (self._target.row_key, self._target.sample_index):
                self._token_ids, common = sequence.token_ids, chunk.stop
                drawn += [(draws, chunk.stop - 1)] if chunk.samples else []
            else:
                common = common_length(sequence.token_ids, self._token_ids)
            rows += [(start + p - chunk.start, p) for p in range(chunk.start, min(chunk.stop, common))]
            start += chunk.length
            draws += chunk.samples
        return rows, drawn


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin alike with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
