"""One step of the engine: what the runner is given, and what it gives back."""

import collections.abc
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from batchgen.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions ``start <= p < stop`` of one sequence, to be computed in this step.

    Earlier positions are in the cache, and `sequence.block_table` has room for these. With `samples`, the chunk ends
    with the sequence's last token and the next token is drawn, at position `stop`.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool

    @property
    def stop(self) -> int:
        return self.start + self.length


class Sampled(NamedTuple):
    """One drawn token. `logprob` and `top_values` hold float32 values; without `params.logprobs` they may be 0 and ().

    `finite` is False when the row's logits held a NaN or an infinity, or left no token to draw; the rest is then void.
    """

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_values: tuple[float, ...]
    finite: bool


Agreed: TypeAlias = NDArray[np.int64]  # [ranks, n]: the numbers of every rank
# From the chunks of the step that runs to chunks that the next one will have, whatever is drawn.
Plan: TypeAlias = collections.abc.Callable[[collections.abc.Sequence[Chunk]], list[Chunk]]


class Runner(Protocol):
    """Runs the model; owns the KV cache, in blocks that the engine numbers."""

    def step(self, chunks: collections.abc.Sequence[Chunk]) -> list[Sampled]:
        """Compute every chunk and draw for those with `samples`, in their order."""


class PlannedRunner(Protocol):
    """A runner that computes what it can before the draws are known."""

    def step(self, chunks: collections.abc.Sequence[Chunk], *, plan: Plan) -> list[Sampled]:
        """As a Runner's.  `plan` is asked while the device runs."""


@runtime_checkable
class LockstepRunner(Protocol):
    """A runner whose every step is a step of all ranks."""

    def wants(self, chunks: collections.abc.Sequence[Chunk]) -> list[int]:
        """What a step of `chunks` is to other ranks; the first number is its tokens. `step` with them comes next."""

    def step(self, chunks: collections.abc.Sequence[Chunk], agreed: Agreed | None = None) -> list[Sampled]:
        """As a Runner's, on every rank at once, without a chunk too.  `agreed`: what each of them wants."""
