"""One rank of a replica: a process that starts an engine, answers what its driver asks, and ends with it."""

import os
import sys
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import Any

from batchgen.engine.batch import LockstepRunner
from batchgen.engine.lockstep import Lockstep, generate_alone
from batchgen.executor.messages import Beat, Ended, Failed, Ready, Setup
from batchgen.executor.start import start_engine, start_rank
from batchgen.kernels.device import choose_for_rank
from batchgen.parallel.mesh import Mesh
from batchgen.records import Completion, Request

_BEAT = 1.0  # seconds after which the driver hears that the steps go on
_NAP = 0.002  # seconds that a rank waits for requests before it asks the other ranks again
_LAST_WORDS = 10.0  # seconds in which the driver can hear why a rank ends, while the other ranks still find it there


class PipeInbox:
    """The orders of the driver, read beside the steps. Ends this process as soon as the driver is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._held: deque[Request] = deque()
        self._is_over = self._was_dropped = False
        self._beaten = monotonic()
        Thread(target=self._read, daemon=True).start()

    def take(self) -> Any:
        """The next order, whenever it comes."""
        return self._orders.get()

    def begin(self) -> None:
        """Wait for a generation to begin. What was dropped may have left orders behind."""
        while self.take() != "begin":
            pass
        self._held.clear()
        self._is_over = self._was_dropped = False

    def was_dropped(self) -> bool:
        """See engine.lockstep.Inbox. It is asked before each step, so the driver hears that there are steps."""
        if monotonic() - self._beaten > _BEAT:
            self._connection.send(Beat())
            self._beaten = monotonic()
        self._look()
        return self._was_dropped

    def is_over(self) -> bool:
        """See engine.lockstep.Inbox."""
        return self._is_over and not self._held

    def requests(self) -> Iterator[Request | None]:
        """See engine.lockstep.Inbox."""
        while True:
            self._look()
            if self._held:
                yield self._held.popleft()
            elif self._is_over:
                return
            else:
                yield None

    def wait(self) -> None:
        """See engine.lockstep.Inbox."""
        if not self._is_over:
            self._look(_NAP)
        else:
            sleep(_NAP)

    def _look(self, seconds: float = 0.0) -> None:
        """Take the orders that are there, after so long at most."""
        try:
            self._obey(self._orders.get(timeout=seconds) if seconds else self._orders.get_nowait())
            while True:
                self._obey(self._orders.get_nowait())
        except Empty:
            pass

    def _obey(self, order: Any) -> None:
        if order == "drop":
            self._held.clear()
            self._is_over = self._was_dropped = True
        elif order == "end":
            self._is_over = True
        else:
            self._held.extend(order)

    def _read(self) -> None:
        try:
            while True:
                self._orders.put(self._connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def main(fd: int) -> None:
    """Serve the driver at the other end of the socket `fd` until it goes, or something fails."""
    connection = Connection(fd)
    os.set_inheritable(fd, False)
    try:
        serve(connection, PipeInbox(connection))
    except BaseException as error:
        connection.send(Failed.of(error))
        sys.stderr.flush()
        sleep(_LAST_WORDS)
        os._exit(1)


def serve(connection: Connection, inbox: PipeInbox) -> None:
    """Start as the driver says, then answer one generation after the other."""
    setup = inbox.take()
    assert isinstance(setup, Setup)
    size = setup.run_config.expert_parallel_size
    if size == 1:
        alone = start_engine(setup.spec, setup.model, setup.run_config)
        connection.send(Ready(alone.fingerprint, alone.about))
        while True:
            inbox.begin()
            generate_alone(alone, inbox, connection.send)
            connection.send(Ended(alone.stats))
    device = choose_for_rank(setup.run_config.device, setup.spec.numerics, setup.rank)
    mesh = Mesh.join(setup.rank, size, setup.address, device)
    engine = start_rank(setup.spec, setup.model, setup.run_config, mesh)
    runner = engine.runner
    assert isinstance(runner, LockstepRunner)
    connection.send(Ready(engine.fingerprint, engine.about))
    lockstep = Lockstep(engine, runner, mesh)

    def answer(completions: list[Completion]) -> None:
        connection.send(completions)

    while True:
        inbox.begin()
        lockstep.generate(inbox, answer)
        connection.send(Ended(engine.stats))
