"""The runner of a GPU: CUDA graphs for single tokens, and the next step queued before the host knows the last one."""

import collections.abc

import torch

from batchgen import kernels
from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.decode_graphs import DecodeGraphs, Row
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.sampling import sample_rows, sampled
from batchgen.engine.step_ahead import StepAhead
from batchgen.kernels.cuda.sampler import draw, upload
from batchgen.models.any_decoder import AnyDecoder, Cache


class AheadRunner(ModelRunner):
    """Gives what a ModelRunner gives. While an op is watched, it is one."""

    def __init__(self, model: AnyDecoder, cache: list[Cache], max_model_len: int, *, processed_logprobs: bool) -> None:
        super().__init__(model, cache, processed_logprobs=processed_logprobs)
        self.graphs = DecodeGraphs(model, cache, max_model_len)
        self.taken = 0  # chunks that had been computed ahead
        self._ahead = StepAhead(self.graphs)

    def _step(self, chunks: collections.abc.Sequence[Chunk]) -> list[Sampled]:
        if kernels.is_watched():
            self._ahead.take([])
            return super()._step(chunks)
        logits = self._logits(chunks)
        drawn = [chunk for chunk in chunks if chunk.samples]
        if not drawn:
            return []
        sequences = [chunk.sequence for chunk in drawn]
        rows = upload(sample_rows(sequences), logits.shape[1], logits.device)
        draws = draw(logits, rows, processed_logprobs=self._processed_logprobs)
        wait = draws.fetch()
        self._ahead.start(drawn, draws.token)
        return sampled(wait(), sequences)

    def _logits(self, chunks: collections.abc.Sequence[Chunk]) -> torch.Tensor:
        """Float32 [R, V] of the chunks that draw, in their order."""
        ahead = self._ahead.take(chunks)
        self.taken += len(ahead)
        rest = [chunk for index, chunk in enumerate(chunks) if index not in ahead]
        if not ahead:
            if all(chunk.length == 1 and chunk.samples for chunk in rest):
                return self.graphs.forward([_row(chunk) for chunk in rest])
            return self._forward(rest)
        known = self._ahead.logits
        if not rest:
            return _picked(known, list(ahead.values()))
        # No graph: it could write over the logits that are there.
        both = torch.cat([known, self._forward(rest)])
        new = iter(range(len(known), len(both)))
        return _picked(both, [ahead[i] if i in ahead else next(new) for i, chunk in enumerate(chunks) if chunk.samples])


def _row(chunk: Chunk) -> Row:
    return Row(chunk.sequence.block_table, chunk.start, chunk.sequence.token_ids[chunk.start])


def _picked(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """The rows; without a copy where they are the first ones."""
    if rows == list(range(len(rows))):
        return logits[: len(rows)]
    return logits[torch.tensor(rows).to(logits.device, non_blocking=True)]
