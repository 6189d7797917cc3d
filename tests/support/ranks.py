"""Processes that are the ranks of a mesh: started once, given work many times, and never waited for without an end."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

import torch

from batchgen.parallel.meeting import free_address
from batchgen.parallel.mesh import Mesh

Work = Callable[..., Any]  # (mesh, *args) -> what can be pickled; a function of a module in tests/support

LIMIT = 60.0  # seconds for one piece of work


class Ranks:
    """`count` processes, each on the CPU or on a GPU of its own.

    They come from a server that has imported torch once, so that eight start as fast as one.
    """

    def __init__(self, count: int, *, on_gpus: bool = False) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])  # the package itself is found only by the path of this process
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, on_gpus), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, size: int, work: Work, *args: Any) -> list[Any]:
        """What `work(mesh, *args)` returns on each of `size` ranks. Fails with the first traceback."""
        answers = self.outcomes(size, work, *args)
        for rank, (well, answer) in enumerate(answers):
            assert well, f"rank {rank} of {size}:\n{answer}"
        return [answer for _, answer in answers]

    def outcomes(self, size: int, work: Work, *args: Any) -> list[tuple[bool, Any]]:
        """Of each rank: whether it went well, and its answer or its traceback."""
        address = free_address()
        for rank, pipe in enumerate(self._pipes[:size]):
            pipe.send((work, rank, size, address, args))
        return [self._answer(rank) for rank in range(size)]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        try:
            if self._pipes[rank].poll(LIMIT):
                answer: tuple[bool, Any] = self._pipes[rank].recv()
                return answer
        except EOFError:
            return False, "the process has ended"
        self.close()
        raise AssertionError(f"rank {rank} has said nothing for {LIMIT:.0f} s: it hangs")

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _serve(pipe: Connection, on_gpus: bool) -> None:
    torch.set_num_threads(1)
    while True:
        work, rank, size, address, args = pipe.recv()
        try:
            device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
            mesh = Mesh.join(rank, size, address, device, patience=20.0, step_limit=20.0)
            try:
                pipe.send((True, work(mesh, *args)))
            finally:
                mesh.close()
        except Exception:
            pipe.send((False, traceback.format_exc()))
