"""The processes of a replica, as their driver sees them: started, heard, and ended together."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple

from batchgen.errors import BatchgenError, EngineError
from batchgen.executor.messages import Failed

_GRACE = 0.5  # seconds, when a rank has failed: another may have ended without a word, and be the cause
_ENDING = 2.0  # seconds in which ranks may end by themselves
_VALID = "what is committed is valid, and the same command goes on from there"


class _Gone(NamedTuple):
    """In the place of a message: a rank has closed its end of the connection."""


class _Process(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: socket.socket
    connection: Connection  # over the same
    hearing: Thread


class RankProcesses:
    """`size` processes that run `target`, MODULE:FUNCTION, with the number of a socket as its argument.

    They have sessions of their own, so that Ctrl-C reaches their driver alone, and they end when it does.
    """

    def __init__(self, size: int, target: str, threads: int) -> None:
        """`threads`: how many torch computes with in each of them."""
        self.is_alive = True
        self._messages: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._ranks: list[_Process] = []
        try:
            for _ in range(size):
                self._start(target, threads)
        except BaseException:
            self.close(at_once=True)
            raise

    @property
    def pids(self) -> list[int]:
        """Of the processes, by rank."""
        return [rank.process.pid for rank in self._ranks]

    def send(self, rank: int, message: object) -> None:
        """Raises what became of the ranks, if this one is gone; then all are ended."""
        try:
            self._ranks[rank].connection.send(message)
        except OSError:
            raise self._lost() from None

    def send_all(self, message: object) -> None:
        """See `send`."""
        for rank in range(len(self._ranks)):
            self.send(rank, message)

    def receive(self, patience: float | None = None) -> tuple[int, Any]:
        """The next message of any rank, and which. Raises the error of the first that failed; then all are ended.

        Raises TimeoutError when none comes for `patience` seconds; None waits for ever.
        """
        try:
            rank, message = self._messages.get(timeout=patience)
        except Empty:
            raise TimeoutError from None
        if isinstance(message, Failed | _Gone):
            self._messages.put((rank, message))
            raise self._lost()
        return rank, message

    def close(self, *, at_once: bool = False) -> None:
        """End them; unless `at_once` they may leave by themselves."""
        self.is_alive = False
        for rank in self._ranks:
            if at_once:
                rank.process.kill()
            with suppress(OSError):
                rank.socket.shutdown(socket.SHUT_RDWR)
        limit = monotonic() + _ENDING
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, limit - monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
            rank.hearing.join()
            rank.connection.close()
            rank.socket.close()
        self._ranks.clear()

    def _start(self, target: str, threads: int) -> None:
        ours, theirs = socket.socketpair()
        module, function = target.split(":")
        call = f"from {module} import {function}; {function}({theirs.fileno()})"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {call}"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # that of the driver may be one JSON object
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"},
                start_new_session=True,
            )
        connection, rank = Connection(os.dup(ours.fileno())), len(self._ranks)
        hearing = Thread(target=self._hear, args=(rank, connection), daemon=True)
        self._ranks.append(_Process(process, ours, connection, hearing))
        hearing.start()

    def _hear(self, rank: int, connection: Connection) -> None:
        """Ranks are heard while the driver does other things, so they never wait for it."""
        with suppress(EOFError, OSError):
            while True:
                self._messages.put((rank, connection.recv()))
        self._messages.put((rank, _Gone()))

    def _lost(self) -> BatchgenError:
        """Why a rank is lost: the first that ended without a word, else the first that failed. Ends all of them."""
        failed: dict[int, Failed] = {}
        limit = monotonic() + _GRACE
        error: BatchgenError | None = None
        while error is None and (left := limit - monotonic()) > 0:
            with suppress(Empty):
                rank, message = self._messages.get(timeout=left)
                if isinstance(message, Failed):
                    failed[rank] = message
                elif isinstance(message, _Gone) and rank not in failed:
                    error = self._died(rank)
        if error is None and failed:
            first = min(failed, key=lambda rank: failed[rank].at)
            error = failed[first].as_error(first)
        self.close(at_once=True)
        return error or EngineError("a rank cannot be reached", hint=_VALID)

    def _died(self, rank: int) -> EngineError:
        try:
            status = self._ranks[rank].process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return EngineError(f"rank {rank} of {len(self._ranks)} does not answer any more", hint=_VALID)
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        hint = f"the system kills processes when memory runs out; {_VALID}" if status == -signal.SIGKILL else _VALID
        return EngineError(f"rank {rank} of {len(self._ranks)} {how}", hint=hint)
