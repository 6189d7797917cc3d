"""Which tokens run in the next step. Plain integers, no clock; nothing that it decides can be seen in the output."""

import collections.abc
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from batchgen.engine.batch import Chunk
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """How much runs at once. No field can change a bit of a completion."""

    max_num_seqs: int  # sequences that hold cache blocks
    max_num_batched_tokens: int  # tokens in one step
    num_blocks: int  # blocks of the KV cache
    prefix_cache_blocks: int  # free blocks that keep their content for sharing; 0: nothing is shared
    looks_ahead: bool = False  # who draws gets the block of its next token already, if one is free


class Scheduler:
    """Continuous batching with chunked prefill, first come first served.

    `running` is in order of arrival and everything in `waiting` came later: the earliest is admitted first, and the
    latest is preempted first when blocks run out. A sequence is admitted only in a step that has room for tokens after
    all earlier ones got theirs, so at most the last one running is within its prefill. Hence one pass in order of
    arrival gives the decodes first, then the rest of a prefill, then newcomers, and whoever is preempted has not been
    given tokens in this step yet. The earliest can take blocks from all others: it always advances.

    Whoever is admitted begins after the longest prefix that the cache holds, often its own from before a preemption.
    A block may be shared from the moment at which the chunk that completes it is scheduled, in the same step too:
    samples of one prompt that arrive together compute it once. If a step fails, the caller must let the blocks forget.

    A step gives the logits of at most `max_num_seqs` positions. Who has given tokens to score may want more than one:
    it then gets the tokens that this leaves room for.

    An arrival that is None ends the admissions of a step, so that its caller can answer a request that is no sequence.
    """

    def __init__(self, arrivals: Iterator[Sequence | None], blocks: BlockManager, limits: Limits) -> None:
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()  # preempted ones, and at most one newcomer that did not fit
        self.num_preemptions = 0
        self.num_cached_tokens = 0  # found in the cache at admissions
        self._arrivals = arrivals
        self._blocks = blocks
        self._limits = limits

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, one a sequence; empty when every request is finished."""
        chunks: list[Chunk] = []
        budget, rows = self._limits.max_num_batched_tokens, self._limits.max_num_seqs
        while budget > 0 and rows > 0 and (len(chunks) < len(self.running) or self._admit()):
            sequence = self.running[len(chunks)]
            length = sequence.num_planned or _length(sequence, sequence.num_computed, budget, rows)
            if not self._make_room(sequence, sequence.num_computed + length):
                break
            sequence.num_planned = 0
            chunks.append(self._cut(sequence, sequence.num_computed, length))
            budget, rows = budget - length, rows - chunks[-1].num_rows
            if not chunks[-1].samples:  # a plan may have cut it for more tokens than there are now
                break
        if self._limits.looks_ahead:
            for chunk in chunks:
                if chunk.samples:
                    self._blocks.grow(chunk.sequence.block_table, chunk.stop + 1)
        return chunks

    def plan(self, chunks: collections.abc.Sequence[Chunk]) -> list[Chunk]:
        """Prefills that the step after `chunks`, which runs, will have whatever is drawn: its rest, and newcomers.

        That step has a token for each that is drawn, too, unless that ends its sequence. The next `schedule` gives the
        planned chunks as they are, but for those of sequences that had to be preempted.
        """
        if len(chunks) < len(self.running):  # who is waiting for tokens comes first
            return []
        planned: list[Chunk] = []
        drawn = sum(chunk.samples for chunk in chunks)
        budget, rows = self._limits.max_num_batched_tokens - drawn, self._limits.max_num_seqs - drawn
        start = None if chunks[-1].samples else chunks[-1].stop
        while budget > 0 and rows > 0 and (start is not None or self._admit()):
            sequence = self.running[-1]
            start = sequence.num_computed if start is None else start
            length = _length(sequence, start, budget, rows)
            if not self._blocks.grow(sequence.block_table, start + length):
                break
            planned.append(self._cut(sequence, start, length))
            sequence.num_planned = length
            budget, rows, start = budget - length, rows - planned[-1].num_rows, None
            if not planned[-1].samples:
                break
        return planned

    def _cut(self, sequence: Sequence, start: int, length: int) -> Chunk:
        stop = start + length
        scored = sequence.num_scored_in(start, stop)
        chunk = Chunk(sequence, start, length, samples=stop == sequence.num_tokens, num_scored=scored)
        self._blocks.register(sequence.block_table, sequence.token_ids, chunk.start, chunk.stop)
        return chunk

    def finish(self, sequence: Sequence) -> None:
        """`sequence` is done: its blocks are free again."""
        self.running.remove(sequence)
        self._blocks.free(sequence.block_table)

    def release(self) -> None:
        """Let go of every sequence."""
        while self.running:
            self.finish(self.running[-1])
        self.waiting.clear()

    def _admit(self) -> bool:
        """Start the next sequence, if there is one and it fits with all of its present tokens.

        One block for each running sequence stays free, lest the newcomer is preempted as soon as it is computed.
        """
        if len(self.running) == self._limits.max_num_seqs:
            return False
        if not self.waiting:
            self.waiting.extend(arrival for arrival in itertools.islice(self._arrivals, 1) if arrival)
        if not self.waiting:
            return False
        sequence = self.waiting[0]
        # What the cache holds was not seen on its way through the experts.
        reusable = 0 if sequence.request.fresh or sequence.routes is not None else sequence.first_row
        cached = self._blocks.admit(sequence.block_table, sequence.token_ids, len(self.running), reusable)
        if cached is None:
            return False
        sequence.num_computed = cached
        self.num_cached_tokens += cached
        self.running.append(self.waiting.popleft())
        return True

    def _make_room(self, sequence: Sequence, num_positions: int) -> bool:
        """Blocks for `num_positions`, from the latest arrivals if need be; False if `sequence` itself must wait."""
        while not self._blocks.grow(sequence.block_table, num_positions):
            if self.running[-1] is sequence:
                assert len(self.running) > 1, "the pool is smaller than one sequence"
                return False
            self._preempt()
        return True

    def _preempt(self) -> None:
        sequence = self.running.pop()
        self._blocks.free(sequence.block_table)
        sequence.num_computed = sequence.num_planned = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1


def _length(sequence: Sequence, start: int, budget: int, rows: int) -> int:
    """How many tokens from `start` on a chunk has, of at most so many tokens and rows of logits; at least 1."""
    last_row = max(start, sequence.first_row) + rows
    return min(sequence.num_tokens - start, budget, last_row - start)
