"""Placement: which rank holds which expert. Pure functions of integers.

A *slot* holds a copy of one expert. The slots of a replica are numbered through its ranks, rank by rank; the first
ranks hold one more where the slots do not divide evenly. An expert may have several slots, on several ranks: redundant
copies, equal to the byte.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchgen.errors import EngineError

# Over which a token's row and rank choose a copy: it divides evenly by every number of copies up to 8.
SPREAD = 840
STRIDE = 23333  # has no factor in common with SPREAD, so neighbouring rows take copies far apart


@dataclass(frozen=True, slots=True)
class Placement:
    """The expert in each slot. Raises EngineError where an expert has none, or a rank holds none."""

    num_experts: int
    slots: tuple[int, ...]
    size: int  # ranks

    def __post_init__(self) -> None:
        if self.size > self.num_experts:
            raise EngineError(
                f"{self.size} ranks cannot share {self.num_experts} experts: a rank would have none of its own",
                hint=f"ask for at most {self.num_experts} ranks",
            )
        if set(self.slots) != set(range(self.num_experts)):
            raise EngineError(f"the slots {self.slots} do not hold every one of {self.num_experts} experts")

    def bounds(self) -> list[int]:
        """The first slot of each rank, and the end of the last."""
        return bounds(len(self.slots), self.size)

    def slots_of(self, rank: int) -> tuple[int, ...]:
        """The experts that a rank holds, by local slot."""
        first, end = self.bounds()[rank : rank + 2]
        return self.slots[first:end]

    def ranks(self) -> NDArray[np.int32]:
        """The rank of each slot."""
        return np.repeat(np.arange(self.size, dtype=np.int32), np.diff(self.bounds()))

    def copies(self) -> list[list[int]]:
        """The slots of each expert, ascending."""
        found: list[list[int]] = [[] for _ in range(self.num_experts)]
        for slot, expert in enumerate(self.slots):
            found[expert].append(slot)
        return found

    def table(self) -> NDArray[np.int32]:
        """The slot for each expert and each value of `spread`  -> [num_experts, columns].

        The number of columns depends on the number of slots alone, so a table may replace another in place.
        """
        columns = SPREAD if len(self.slots) > self.num_experts else 1
        every = np.arange(columns)
        rows = [np.array(slots)[every % len(slots)] for slots in self.copies()]
        return np.stack(rows).astype(np.int32)

    def target(self, expert: int, source_rank: int, token_row: int) -> int:
        """The slot that serves `expert` for the row `token_row` of a rank's step: no load is looked at, none kept."""
        slots = self.copies()[expert]
        return slots[spread(source_rank, token_row) % len(slots)]


def spread(source_rank: int, token_row: int) -> int:
    """A column of `Placement.table`: by it the rows of a step are spread over the copies of an expert."""
    return (source_rank + token_row * STRIDE) % SPREAD


def bounds(num_slots: int, size: int) -> list[int]:
    """How slots are cut into ranks: the first slot of each, and the end of the last."""
    each, more = divmod(num_slots, size)
    return [rank * each + min(rank, more) for rank in range(size + 1)]


def initial(num_experts: int, size: int, redundant: int = 0) -> Placement:
    """The experts in their order, then a second copy of the first `redundant`. Raises EngineError."""
    if not 0 <= redundant <= num_experts:
        raise EngineError(
            f"{redundant} redundant experts of {num_experts} cannot be placed", hint=f"ask for 0 to {num_experts}"
        )
    return Placement(num_experts, (*range(num_experts), *range(redundant)), size)


def permuted(placement: Placement, seed: int) -> Placement:
    """The same slots in an order drawn by `seed`: what a test holds against `initial`."""
    order = np.random.default_rng(seed).permutation(len(placement.slots))
    return Placement(placement.num_experts, tuple(placement.slots[i] for i in order), placement.size)
