"""The next tokens of a step's sequences, computed before the host knows what the step drew.

While the device draws, the next forward of every sequence that may go on is already queued behind: its token comes
from the draw on the device. Behind it go the prefills that the step will have in any case. The host meanwhile commits
and schedules as if nothing had happened, and takes the logits if it then wants those very tokens at that very place.
What it does not want is thrown away: a row's bits do not depend on its company, and keys and values that nobody asked
for lie where nobody looks.
"""

import collections.abc
from typing import NamedTuple

import torch

from batchgen.engine.batch import Chunk
from batchgen.engine.decode_graphs import DecodeGraphs, GraphSize, Row
from batchgen.kernels.constants import BLOCK_SIZE


class _Ahead(NamedTuple):
    """One chunk whose keys, values and logits are on their way."""

    chunk: Chunk
    rows: range  # of the logits
    blocks: list[int]  # where keys and values up to its end lie


class Taken(NamedTuple):
    """Chunks that need not run any more."""

    rows: dict[int, range]  # index of a chunk -> its rows of the logits
    logits: torch.Tensor  # float32 [rows, V]


class StepAhead:
    """What was computed ahead of the step that comes."""

    def __init__(self, graphs: DecodeGraphs) -> None:
        self._graphs = graphs
        self._chunks: dict[int, _Ahead] = {}  # by the identity of the sequence, which the entry keeps alive
        self._logits: list[torch.Tensor] = []

    def take(self, chunks: collections.abc.Sequence[Chunk]) -> Taken:
        """Those of `chunks` that were computed ahead. They are taken once, and what is not taken is forgotten."""
        rows = {}
        for index, chunk in enumerate(chunks):
            ahead = self._chunks.get(id(chunk.sequence))
            if ahead and ahead.chunk == chunk and ahead.blocks == _blocks(chunk):
                rows[index] = ahead.rows
        logits = self._logits
        self._chunks, self._logits = {}, []
        return Taken(rows, logits[0] if len(logits) == 1 else torch.cat(logits) if logits else torch.empty(0))

    def going(self, drawn: collections.abc.Sequence[Chunk]) -> list[int]:
        """Which of `drawn` may want another token after the one being drawn."""
        return [at for at, chunk in enumerate(drawn) if _may_go_on(chunk)]

    def start(
        self, drawn: collections.abc.Sequence[Chunk], going: list[int], tokens: torch.Tensor, size: GraphSize
    ) -> None:
        """Queue the next tokens.  tokens int32 [R], on the device, those of `drawn`; `going`: which of them go on."""
        rows = [Row(drawn[at].sequence.block_table, drawn[at].stop, 0) for at in going]
        indices = None if len(going) == len(drawn) else going
        self._logits = [self._graphs.forward(rows, (tokens, indices), size)]
        self._keep([Chunk(drawn[at].sequence, drawn[at].stop, 1, samples=True) for at in going], first=0)

    def add(self, chunks: collections.abc.Sequence[Chunk], logits: torch.Tensor) -> None:
        """What else was queued for the step that comes.  logits float32 [R, V] of the rows of `chunks`."""
        first = sum(len(part) for part in self._logits)
        self._logits.append(logits)
        self._keep(chunks, first)

    def _keep(self, chunks: collections.abc.Sequence[Chunk], first: int) -> None:
        """`first`: the first of the chunks' rows."""
        for chunk in chunks:
            rows = range(first, first + chunk.num_rows)
            self._chunks[id(chunk.sequence)] = _Ahead(chunk, rows, _blocks(chunk))
            first = rows.stop

    def serve(self, size: GraphSize) -> None:
        """Run with other ranks what only they have tokens for."""
        self._graphs.forward([], size=size)


def _may_go_on(chunk: Chunk) -> bool:
    """Whether its sequence can want another token after the one being drawn, and has a place for this one's keys."""
    sequence = chunk.sequence
    wants = sequence.num_output + 1 < sequence.request.params.max_tokens
    return chunk.draws and wants and len(sequence.block_table) * BLOCK_SIZE > chunk.stop


def _blocks(chunk: Chunk) -> list[int]:
    """Those of the positions up to its end, as far as its sequence has them."""
    return chunk.sequence.block_table[: -(-chunk.stop // BLOCK_SIZE)]
