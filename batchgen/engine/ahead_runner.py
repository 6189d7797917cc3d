"""The runner of a GPU: CUDA graphs for single tokens, and the next step queued before the host knows the last one."""

import collections.abc
import itertools
from typing import NamedTuple

import numpy as np
import torch

from batchgen import kernels
from batchgen.engine.batch import Agreed, Chunk, Plan, Sampled
from batchgen.engine.decode_graphs import DecodeGraphs, GraphSize, Row
from batchgen.engine.given_rows import rows_of
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.routes import refused_on_gpu
from batchgen.engine.sampling import sample_rows, sampled
from batchgen.engine.step_ahead import StepAhead, Taken
from batchgen.kernels.cuda.sampler import draw, upload
from batchgen.models.any_decoder import AnyDecoder, Cache


class Wants(NamedTuple):
    """What one rank has to run in a step, or the most that any rank has: then all ranks run the same forwards.

    First the rest, what was not computed ahead: by a graph if no rank has more than single tokens there and no rank
    took anything (a graph could write over the logits that are there), else as a step of its own. Then, by a graph,
    the tokens after those that are drawn.
    """

    tokens: int  # of the step
    ahead: int  # of them that were computed ahead
    rest: int  # of them that were not
    is_mixed: int  # 1 if a chunk of the rest is no single token that is drawn for
    rest_context: int  # positions of its longest sequence
    going: int  # sequences that may go on after this step
    going_context: int


class _Plan(NamedTuple):
    """One step of this rank."""

    ahead: Taken
    rest: list[Chunk]
    going: list[int]  # which of the chunks that draw may go on


class AheadRunner(ModelRunner):
    """Gives what a ModelRunner gives. While an op is watched, it is one."""

    def __init__(self, model: AnyDecoder, cache: list[Cache], max_model_len: int, *, processed_logprobs: bool) -> None:
        super().__init__(model, cache, processed_logprobs=processed_logprobs)
        self.graphs = DecodeGraphs(model, cache, max_model_len)
        self.taken = 0  # chunks that had been computed ahead
        self._ahead = StepAhead(self.graphs)
        self._plan = _Plan(self._ahead.take([]), [], [])

    def wants(self, chunks: collections.abc.Sequence[Chunk]) -> list[int]:
        """See ModelRunner: the numbers of Wants. Raises EngineError for a sequence that wants its routes."""
        if any(chunk.sequence.routes is not None for chunk in chunks):  # a graph tells nobody what it chose
            raise refused_on_gpu()
        ahead = self._ahead.take(chunks)
        rest = [chunk for index, chunk in enumerate(chunks) if index not in ahead.rows]
        drawn = [chunk for chunk in chunks if chunk.draws]
        going = self._ahead.going(drawn)
        self._plan = _Plan(ahead, rest, going)
        return list(
            Wants(
                tokens=sum(chunk.length for chunk in chunks),
                ahead=len(ahead.rows),
                rest=sum(chunk.length for chunk in rest),
                is_mixed=int(not all(chunk.length == 1 and chunk.samples for chunk in rest)),
                rest_context=max((chunk.stop for chunk in rest), default=0),
                going=len(going),
                going_context=max((drawn[at].stop + 1 for at in going), default=0),
            )
        )

    def _step(self, chunks: collections.abc.Sequence[Chunk], agreed: Agreed | None, plan: Plan | None) -> list[Sampled]:
        if kernels.is_watched():
            self._ahead.take([])
            return super()._step(chunks, agreed, plan)
        if agreed is None:
            agreed = np.array([self.wants(chunks)])
        most = Wants(*agreed.max(axis=0).tolist())
        step = rows_of(chunks)
        every = self._logits(chunks, most)
        logits = step.drawn(every)
        scored = step.scored(every, processed=self._processed_logprobs)  # the next forward may write over them
        drawn = [chunk for chunk in chunks if chunk.draws]
        sequences = [chunk.sequence for chunk in drawn]
        going, size = self._plan.going, GraphSize(most.going, most.going_context)
        if not drawn:
            if most.going:
                self._ahead.serve(size)
            return scored
        rows = upload(sample_rows(sequences), logits.shape[1], logits.device)
        draws = draw(logits, rows, processed_logprobs=self._processed_logprobs)
        wait = draws.fetch()
        if most.going:
            self._ahead.start(drawn, going, draws.token, size)
        if plan and (planned := plan(chunks)):
            self._ahead.add(planned, self._forward(planned).clone())  # the next forward may write over them
        return step.merged(sampled(wait(), sequences), scored)

    def _logits(self, chunks: collections.abc.Sequence[Chunk], most: Wants) -> torch.Tensor:
        """Float32 [R, V] of the chunks' rows, in their order."""
        (ahead, known), rest, _ = self._plan
        self.taken += len(ahead)
        if most.rest and not most.ahead and not most.is_mixed:
            size = GraphSize(most.rest, most.rest_context)
            return self.graphs.forward([_row(chunk) for chunk in rest], size=size)
        found = self._forward(rest) if most.rest else known[:0]
        if not ahead:
            return found
        both = torch.cat([known, found]) if len(found) else known
        new = iter(range(len(known), len(both)))
        rows = [ahead[i] if i in ahead else itertools.islice(new, chunk.num_rows) for i, chunk in enumerate(chunks)]
        return _picked(both, list(itertools.chain.from_iterable(rows)))


def _row(chunk: Chunk) -> Row:
    return Row(chunk.sequence.block_table, chunk.start, chunk.sequence.token_ids[chunk.start])


def _picked(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """The rows; without a copy where they are the first ones."""
    if rows == list(range(len(rows))):
        return logits[: len(rows)]
    return logits[torch.tensor(rows).to(logits.device, non_blocking=True)]
