"""A fleet whose replicas are threads around fake engines: real workers, real news, and losses on demand."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from support.fake_engine import FakeEngine

from batchgen.errors import EngineError
from batchgen.executor.actor import Replica, ReplicaSetup
from batchgen.executor.base import Engine, Job
from batchgen.executor.fleet import Heard, Lost
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Failure, News, Work


@dataclass
class ThreadFleet:
    """`make` gives the engine of the replica with that number, or raises what its start fails with."""

    job: Job
    config: RunConfig
    make: Callable[[int], Engine] = lambda number: FakeEngine(order=number)
    on_give: Callable[["ThreadFleet", str, Work], None] = lambda fleet, name, work: None
    on_said: Callable[["ThreadFleet", str, Heard], Heard] = lambda fleet, name, said: said
    names: list[str] = field(default_factory=list)
    given: list[tuple[str, int]] = field(default_factory=list)  # replica, shard
    ended: Counter[str] = field(default_factory=Counter)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._said: SimpleQueue[tuple[str, Heard]] = SimpleQueue()
        self._alive: dict[str, Replica] = {}

    def start(self) -> str:
        number = len(self.names)
        name = f"r{number}"
        self.names.append(name)

        def opening(setup: ReplicaSetup, on_death: Callable[[str], None]) -> tuple[Job, Engine]:
            return self.job, self.make(number)

        setup = ReplicaSetup(self.job.spec, Path(), self.config)
        self._alive[name] = Replica(setup, opening)
        Thread(target=self._run, args=(name, self._alive[name]), daemon=True).start()
        return name

    def give(self, name: str, work: Work) -> None:
        self.given.append((name, work.shard.index))
        if name in self._alive:
            self._alive[name].give(work)
        self.on_give(self, name, work)

    def hear(self, seconds: float) -> list[tuple[str, Heard]]:
        found: list[tuple[str, Heard]] = []
        with contextlib.suppress(Empty):
            found.append(self._said.get(timeout=seconds) if seconds else self._said.get_nowait())
            while True:
                found.append(self._said.get_nowait())
        return [(name, self.on_said(self, name, said)) for name, said in found if not self.ended[name]]

    def end(self, name: str) -> None:
        self.ended[name] += 1
        if replica := self._alive.pop(name, None):
            with contextlib.suppress(AssertionError):
                replica.give(None)

    def close(self) -> None:
        self.is_closed = True
        for name in list(self._alive):
            self.end(name)

    def lose(self, name: str, reason: str = "its node is gone") -> None:
        """As when the machine of a replica is lost: what it says from now on is not heard."""
        self._said.put((name, Lost(EngineError(reason))))
        self._alive.pop(name, None)

    def _run(self, name: str, replica: Replica) -> None:
        started = replica.start()
        if isinstance(started, Failure):
            self._said.put((name, Lost(started.error, is_told=True)))
            return
        self._said.put((name, started))
        while self._alive.get(name) is replica:
            news = replica.news(0.02)
            if self._alive.get(name) is replica and (news != News(news.told)):
                self._said.put((name, news))


def engine_of(number: int, fingerprint: Mapping[str, str], **fields: Any) -> FakeEngine:
    """One that says that it is another."""
    return replace(FakeEngine(order=number), fingerprint=fingerprint, **fields)
