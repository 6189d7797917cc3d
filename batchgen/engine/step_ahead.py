"""The next tokens of a step's sequences, computed before the host knows what the step drew.

While the device draws, the next forward of every sequence that may go on is already queued behind: its token comes
from the draw on the device. The host meanwhile commits and schedules as if nothing had happened, and takes the logits
if it then wants that very token at that very place. What it does not want is thrown away: a row's bits do not depend
on its company, and keys and values that nobody asked for lie where nobody looks.
"""

import collections.abc
from typing import NamedTuple

import torch

from batchgen.engine.batch import Chunk
from batchgen.engine.decode_graphs import DecodeGraphs, GraphSize, Row
from batchgen.engine.sequence import Sequence
from batchgen.kernels.constants import BLOCK_SIZE


class _Ahead(NamedTuple):
    """One row of logits that are on their way."""

    sequence: Sequence
    row: int
    slot: int  # where the token's key and value went


class StepAhead:
    """What was computed ahead of the step that comes."""

    def __init__(self, graphs: DecodeGraphs) -> None:
        self._graphs = graphs
        self._rows: dict[int, _Ahead] = {}  # by the identity of the sequence, which the entry keeps alive
        self._logits = torch.empty(0)

    def take(self, chunks: collections.abc.Sequence[Chunk]) -> dict[int, int]:
        """Index into `chunks` -> row of `logits`, for the chunks that were computed ahead. They are taken once."""
        found = {}
        for index, chunk in enumerate(chunks):
            ahead = self._rows.get(id(chunk.sequence))
            if ahead and chunk.length == 1 and chunk.samples and ahead.slot == slot_of(chunk.sequence, chunk.start):
                found[index] = ahead.row
        self._rows = {}
        return found

    @property
    def logits(self) -> torch.Tensor:
        """Float32 [rows, V]."""
        return self._logits

    def going(self, drawn: collections.abc.Sequence[Chunk]) -> list[int]:
        """Which of `drawn` may want another token after the one being drawn."""
        return [at for at, chunk in enumerate(drawn) if _may_go_on(chunk)]

    def start(
        self, drawn: collections.abc.Sequence[Chunk], going: list[int], tokens: torch.Tensor, size: GraphSize
    ) -> None:
        """Queue the next tokens.  tokens int32 [R], on the device, those of `drawn`; `going`: which of them go on."""
        rows = [Row(drawn[at].sequence.block_table, drawn[at].stop, 0) for at in going]
        indices = None if len(going) == len(drawn) else going
        self._logits = self._graphs.forward(rows, (tokens, indices), size)
        for row, at in enumerate(going):
            sequence = drawn[at].sequence
            self._rows[id(sequence)] = _Ahead(sequence, row, slot_of(sequence, drawn[at].stop))

    def serve(self, size: GraphSize) -> None:
        """Run with other ranks what only they have tokens for."""
        self._graphs.forward([], size=size)


def _may_go_on(chunk: Chunk) -> bool:
    """Whether its sequence can want another token after the one being drawn, and has a place for this one's keys."""
    sequence = chunk.sequence
    wants = sequence.num_output + 1 < sequence.request.params.max_tokens
    return wants and len(sequence.block_table) * BLOCK_SIZE > chunk.stop


def slot_of(sequence: Sequence, position: int) -> int:
    """Where a position's key and value lie; -1 if the sequence has no block for it."""
    at = position // BLOCK_SIZE
    table = sequence.block_table
    return table[at] * BLOCK_SIZE + position % BLOCK_SIZE if at < len(table) else -1
