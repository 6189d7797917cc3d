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
    with the sequence's last token and the next token is drawn, at position `stop`, or scored if it is given.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool
    num_scored: int = 0  # positions right before the last one (the last ones, without `samples`) that score their next

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def num_rows(self) -> int:
        """Its last positions, so many, are those whose logits are wanted."""
        return self.num_scored + self.samples

    @property
    def draws(self) -> bool:
        return self.samples and self.sequence.request.continuation is None


class Sampled(NamedTuple):
    """One drawn token, or one that was given and is scored.

    `logprob` and `top_values` hold float32 values; of a draw without `params.logprobs` they may be 0 and ().

    `finite` is False when the row's logits held a NaN or an infinity, or left no token to draw; the rest is then void.
    `kept`: with `params.kept_tokens`, what the filters left, ids ascending; () if that was more than it allows.
    """

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_values: tuple[float, ...]
    finite: bool
    kept: tuple[int, ...] | None = None


Agreed: TypeAlias = NDArray[np.int64]  # [ranks, n]: the numbers of every rank
# From the chunks of the step that runs to chunks that the next one will have, whatever is drawn.
Plan: TypeAlias = collections.abc.Callable[[collections.abc.Sequence[Chunk]], list[Chunk]]


class Runner(Protocol):
    """Runs the model; owns the KV cache, in blocks that the engine numbers."""

    def step(self, chunks: collections.abc.Sequence[Chunk]) -> list[Sampled]:
        """Compute every chunk, and score or draw for each of their rows, in their order."""


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
