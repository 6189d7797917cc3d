"""The start of a job on replicas: what all of them must compute is settled before any of them works."""

import logging
from math import inf
from time import perf_counter

from batchgen.executor.base import Job
from batchgen.executor.fleet import POLL, Fleet, Heard, Lost
from batchgen.executor.members import chosen
from batchgen.executor.run_config import RunConfig
from batchgen.executor.stoppable import Stop, interrupted
from batchgen.executor.work import Started
from batchgen.io.run_folder import RunFolder

MOST_LOST = 8  # replicas, before it is known what all must compute
_CONFIRMING = 60.0  # seconds in which a second replica may start and confirm the first

_log = logging.getLogger(__name__)


class Gathering:
    """The start of a job: replicas are started, and listened to until it is known what all of them must compute."""

    def __init__(self, job: Job, fleet: Fleet, config: RunConfig, folder: RunFolder, stop: Stop) -> None:
        self._job, self._fleet, self._folder, self._stop = job, fleet, folder, stop
        self._there = folder.manifest if folder.manifest and folder.manifest.shards else None
        self._expected = 1 if self._there and self._there.finished else config.replicas
        self._candidates: list[tuple[str, Started]] = []
        self._failed = self._lost = 0
        self.starting: set[str] = set()
        self.heard: list[tuple[str, Heard]] = []  # all of it is the driver's

    def reference(self) -> Started:
        """Raises EngineError when no two are alike, Interrupted, and what is heard when all starts fail."""
        self.starting = {self._fleet.start() for _ in range(self._expected)}
        first: float | None = None
        waits_until = perf_counter() + _CONFIRMING
        while True:
            if self._stop.asked:
                raise interrupted(self._folder, self._stop.asked)
            for name, said in self._fleet.hear(POLL):
                self.heard.append((name, said))
                self._note(name, said)
            if self._candidates and (found := self._found()):
                return found
            if not self._candidates and perf_counter() > waits_until:
                _log.warning("no replica has started yet: models are being loaded, or others use the whole cluster")
                waits_until = inf
            first = first or (perf_counter() if self._candidates else None)
            if first and perf_counter() - first > _CONFIRMING:
                if self._there is None and len(self._candidates) > 1:  # they differ, and a third may never come
                    self._expected = len(self._candidates) + self._failed
                    continue
                _log.info("no second replica has started yet; %s begins alone", self._candidates[0][0])
                return self._candidates[0][1]

    def _note(self, name: str, said: Heard) -> None:
        if isinstance(said, Started):
            self._candidates.append((name, said))
        elif isinstance(said, Lost):
            self._failed += said.is_told
            self._lost += not said.is_told
            if self._failed == self._expected or self._lost > MOST_LOST:
                raise said.error
            if not said.is_told:
                self.starting.add(self._fleet.start())

    def _found(self) -> Started | None:
        if self._there is None:
            return chosen(self._candidates, self._expected - self._failed)
        for _, candidate in self._candidates:
            if self._job.fingerprint(candidate) == dict(self._there.fingerprint):
                return candidate
        # None is like the run: opening it with any of them says what is another.
        return self._candidates[0][1] if len(self._candidates) + self._failed >= self._expected else None
