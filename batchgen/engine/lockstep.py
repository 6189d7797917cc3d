"""The loop of one rank: its own requests, its own cache, and as many steps as every other rank.

Before a step the ranks tell each other what they have to run in it. A rank that has nothing runs an empty step beside
the others, for their tokens come to its experts too; it goes on so until no rank has anything left.
"""

import collections.abc
from typing import Protocol

from batchgen.engine.batch import Agreed, Chunk, LockstepRunner, Sampled
from batchgen.engine.engine import Engine
from batchgen.records import Completion, Request


class Ranks(Protocol):
    """All ranks, as one of them sees them: a parallel.mesh.Mesh."""

    def gather_ints(self, numbers: collections.abc.Sequence[int]) -> Agreed:
        """The numbers of every rank, int64 [ranks, n], a row for each; called by all of them together."""


class Inbox(Protocol):
    """What a rank is asked to answer."""

    def was_dropped(self) -> bool:
        """Whether nobody waits for the answers any more."""

    def is_over(self) -> bool:
        """Whether all requests were handed out, and no other will come."""

    def requests(self) -> collections.abc.Iterator[Request | None]:
        """Those that came; None whenever there is none now and more may come. Ends when it is over."""

    def wait(self) -> None:
        """Return when something came, or soon."""


class Lockstep:
    """An engine that is one rank of several."""

    def __init__(self, engine: Engine, runner: LockstepRunner, ranks: Ranks) -> None:
        """`runner` runs the steps of `engine`."""
        self._engine, self._runner, self._ranks = engine, runner, ranks

    def generate(self, inbox: Inbox, answer: collections.abc.Callable[[list[Completion]], None]) -> None:
        """Answer all requests of the inbox, in step with the other ranks; returns when all of them are done.

        Raises EngineError when another rank is gone, and what a step raises.
        """
        with self._engine.begin(inbox.requests()) as generation:
            while True:
                if inbox.was_dropped():
                    generation.release()
                chunks = generation.schedule()
                is_open = bool(chunks or generation.refused or not inbox.is_over())
                agreed = self._ranks.gather_ints([is_open, *self._runner.wants(chunks)])
                step = _Step(self._engine, self._runner, agreed[:, 1:])
                if step.has_tokens and not chunks:
                    step.run([])
                if answered := generation.step(chunks, step.run):
                    answer(answered)
                if not agreed[:, 0].any():
                    return
                if not step.has_tokens:
                    inbox.wait()


def generate_alone(engine: Engine, inbox: Inbox, answer: collections.abc.Callable[[list[Completion]], None]) -> None:
    """Answer all requests of the inbox by an engine that is no rank of others; returns when they are done.

    Raises what a step raises.
    """
    with engine.begin(inbox.requests()) as generation:
        run = engine.run_of(generation)
        while True:
            if inbox.was_dropped():
                generation.release()
            chunks = generation.schedule()
            is_idle = not chunks and not generation.refused
            if answered := generation.step(chunks, run):
                answer(answered)
            elif is_idle and inbox.is_over():
                return
            elif is_idle:
                inbox.wait()


class _Step:
    """One step of all ranks."""

    def __init__(self, engine: Engine, runner: LockstepRunner, wants: Agreed) -> None:
        self._stats, self._runner, self._wants = engine.stats, runner, wants
        self._most = int(wants[:, 0].max())

    @property
    def has_tokens(self) -> bool:
        return self._most > 0

    def run(self, chunks: list[Chunk]) -> list[Sampled]:
        self._stats.busiest_tokens += self._most
        self._stats.idle_steps += not chunks
        return self._runner.step(chunks, self._wants)
