"""Ranks without a model: fake runners in lockstep, in threads of one process or in processes of a replica."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.engine_cases import make_engine

from batchgen.engine.batch import Agreed, Chunk, Runner, Sampled
from batchgen.engine.engine import Engine
from batchgen.engine.lockstep import Lockstep
from batchgen.records import Completion, Request


class SteppedRunner:
    """A runner that counts what every rank ran in each step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[list[int]] = []  # the tokens of each rank, for each step

    def wants(self, chunks: Sequence[Chunk]) -> list[int]:
        return [sum(chunk.length for chunk in chunks)]

    def step(self, chunks: Sequence[Chunk], agreed: Agreed | None = None) -> list[Sampled]:
        assert agreed is not None
        self.steps.append(agreed[:, 0].tolist())
        return self._runner.step(chunks) if chunks else []


class Table:
    """Threads that sit around it are the ranks."""

    def __init__(self, size: int) -> None:
        self._said: list[list[int]] = [[] for _ in range(size)]
        self._barrier = threading.Barrier(size, timeout=20)

    def seat(self, rank: int) -> "Seat":
        return Seat(self, rank)

    def gather(self, rank: int, numbers: Sequence[int]) -> Agreed:
        self._said[rank] = list(numbers)
        self._barrier.wait()
        found = np.array(self._said, np.int64)
        self._barrier.wait()
        return found

    def leave(self) -> None:
        self._barrier.abort()


@dataclass
class Seat:
    table: Table
    rank: int

    def gather_ints(self, numbers: Sequence[int]) -> Agreed:
        return self.table.gather(self.rank, numbers)


@dataclass
class ListInbox:
    """Requests that come some looks apart: `gaps[i]` times there is nothing before the next."""

    wanted: Sequence[Request]
    gaps: Sequence[int] = ()
    drop_after: int | None = None  # looks
    looks: int = 0
    handed: int = 0
    waits: int = 0

    def was_dropped(self) -> bool:
        self.looks += 1
        return self.drop_after is not None and self.looks > self.drop_after

    def is_over(self) -> bool:
        return self.handed == len(self.wanted) or (self.drop_after is not None and self.looks > self.drop_after)

    def requests(self) -> Iterator[Request | None]:
        for at, request in enumerate(self.wanted):
            for _ in range(self.gaps[at % len(self.gaps)] if self.gaps else 0):
                yield None
            if self.is_over():
                return
            self.handed += 1
            yield request

    def wait(self) -> None:
        self.waits += 1


@dataclass
class ThreadRank:
    engine: Engine
    runner: SteppedRunner
    inbox: ListInbox
    answers: list[Completion] = field(default_factory=list)
    error: BaseException | None = None


def run_ranks(inboxes: Sequence[ListInbox], **limits: Any) -> list[ThreadRank]:
    """One generation of a rank for each inbox, in threads; raises what the first of them raised."""
    table = Table(len(inboxes))
    ranks = []
    for inbox in inboxes:
        engine = make_engine(**limits)
        ranks.append(ThreadRank(engine, SteppedRunner(engine.runner), inbox))

    def serve(number: int, rank: ThreadRank) -> None:
        try:
            Lockstep(rank.engine, rank.runner, table.seat(number)).generate(rank.inbox, rank.answers.extend)
        except BaseException as error:
            rank.error = error
            table.leave()

    threads = [threading.Thread(target=serve, args=pair) for pair in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for rank in ranks:
        if rank.error and not isinstance(rank.error, threading.BrokenBarrierError):
            raise rank.error
    return ranks
