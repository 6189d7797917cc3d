"""What ranks do in tests of what goes wrong: die, say nothing, disagree."""

import os
import time
from typing import Any

import torch

from batchgen.errors import EngineError
from batchgen.parallel.eplb import Load
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.placement import Placement, initial, permuted


def numbers(mesh: Mesh) -> list[list[int]]:
    """What `gather_ints` gives on this rank, when each rank sends its own number and a large one."""
    return [[int(n) for n in row] for row in mesh.gather_ints([mesh.rank, 2**62 + mesh.rank])]


def nothing_to_gather(mesh: Mesh) -> tuple[int, ...]:
    """The shape of no numbers at all."""
    return tuple(mesh.gather_ints([]).shape)


def one_dies(mesh: Mesh) -> tuple[str, float]:
    """Rank 1 ends in the middle; the others say what they hear, and after how many seconds."""
    mesh.gather_ints([0])
    if mesh.rank == 1:
        os._exit(1)
    begun = time.monotonic()
    try:
        for _ in range(3):
            mesh.all_to_all(torch.zeros(mesh.size, 4), [1] * mesh.size, [1] * mesh.size)
    except EngineError as error:
        return str(error), time.monotonic() - begun
    return "", 0.0


def meet_with_patience(mesh: Mesh, size: int, address: str, silent: tuple[int, ...]) -> str:
    """Leave `mesh`, and join another of `size` ranks at `address`, of whom the `silent` never come. The error."""
    mesh.close()
    if mesh.rank in silent:
        return ""
    try:
        Mesh.join(mesh.rank, size, address, torch.device("cpu"), patience=2.0)
    except EngineError as error:
        return str(error)
    return "joined"


def one_has_no_gpu(mesh: Mesh, address: str) -> tuple[str, float]:
    """Rank 1 asks for a GPU that no machine has. The error of each rank, and after how many seconds."""
    mesh.close()
    begun = time.monotonic()
    try:
        Mesh.join(mesh.rank, mesh.size, address, torch.device("cuda", 99) if mesh.rank == 1 else torch.device("cpu"))
    except EngineError as error:
        return str(error), time.monotonic() - begun
    return "joined", 0.0


def one_is_slow(mesh: Mesh, address: str) -> str:
    """Rank 1 comes late to a collective, the others wait for a second only."""
    mesh.close()
    joined = Mesh.join(mesh.rank, mesh.size, address, torch.device("cpu"), step_limit=1.0)
    try:
        if mesh.rank == 1:
            time.sleep(2.5)
            return ""
        joined.gather_ints([0])
    except EngineError as error:
        return str(error)
    finally:
        joined.close()
    return "nothing was noticed"


class OfItsOwn:
    """A faulty policy: each rank moves experts as it likes."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def start(self, num_experts: int, size: int, redundant: int) -> Placement:
        """See Policy."""
        return initial(num_experts, size, redundant)

    def again(self, load: Load, now: Placement) -> Placement:
        """See Policy; but it is not the same on every rank."""
        return permuted(now, self._rank)


def they_disagree(mesh: Mesh) -> str:
    """The error of a rank whose policy says something of its own."""
    parallel = ExpertParallel(mesh, 8, (0,), interval=1, policy=OfItsOwn(mesh.rank))
    try:
        parallel.end_of_step({0: (torch.zeros(len(parallel.slots(0)), 4),)})
    except EngineError as error:
        return str(error)
    return ""


def loads(mesh: Mesh, ids: list[list[list[int]]]) -> tuple[list[int], Any]:
    """What a policy is told after one step in which rank r had the tokens ids[r], and the placement it began with."""
    told: list[list[int]] = []

    class Listening(OfItsOwn):
        def again(self, load: Load, now: Placement) -> Placement:
            told.append(load.tolist())
            return now

    parallel = ExpertParallel(mesh, 4, (0,), 2, interval=1, policy=Listening(0))
    exchange, mine = parallel.exchange(0), torch.tensor(ids[mesh.rank], dtype=torch.int32).view(-1, 2)
    arrived = exchange.dispatch(torch.zeros(len(mine), 2), mine)
    exchange.combine(torch.zeros(len(arrived.pairs.rows), 2))
    parallel.end_of_step({0: ()})
    return told[0], parallel.placement(0).slots
