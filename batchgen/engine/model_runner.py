"""Runs one step of a model: chunks of sequences to tensors, forward, draw."""

import collections.abc

import numpy as np
import torch

from batchgen.engine.batch import Agreed, Chunk, Plan, Sampled
from batchgen.engine.given_rows import rows_of
from batchgen.engine.routes import Span, recording
from batchgen.engine.sampling import draw
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.golden import require_rounding
from batchgen.kernels.memory import room_for
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import AnyDecoder, Cache


class ModelRunner:
    """Owns the KV cache; reads sequences, and changes none but for the `routes` of those that have them."""

    def __init__(self, model: AnyDecoder, cache: list[Cache], *, processed_logprobs: bool) -> None:
        self._model = model
        self._cache = cache
        self._processed_logprobs = processed_logprobs

    @property
    def model(self) -> AnyDecoder:
        """What it runs."""
        return self._model

    def wants(self, chunks: collections.abc.Sequence[Chunk]) -> list[int]:
        """What a step of `chunks` is to other ranks; the first number is its tokens. `step` with them comes next."""
        return [sum(chunk.length for chunk in chunks)]

    @torch.inference_mode()
    def step(
        self, chunks: collections.abc.Sequence[Chunk], agreed: Agreed | None = None, plan: Plan | None = None
    ) -> list[Sampled]:
        """Compute every chunk, and score or draw for each of their rows, in their order.

        `agreed`: what every rank `wants` of this step, in which each of them runs as many forwards, one of them
        perhaps without a chunk of its own; None for a rank alone. `plan`: asked, while the device runs, for what comes
        next. Raises EngineError where floats are not rounded to
        nearest, and when a GPU's memory runs out.
        """
        require_rounding()
        with room_for(f"a step of {sum(chunk.length for chunk in chunks)} tokens"):
            sampled = self._step(chunks, agreed, plan)
            if agreed is not None:
                self._model.end_of_step()
            return sampled

    def _step(self, chunks: collections.abc.Sequence[Chunk], agreed: Agreed | None, plan: Plan | None) -> list[Sampled]:
        rows = rows_of(chunks)
        logits = self._forward(chunks)
        sequences = [chunk.sequence for chunk in chunks if chunk.draws]
        drawn = draw(rows.drawn(logits), sequences, processed=self._processed_logprobs) if sequences else []
        return rows.merged(drawn, rows.scored(logits, processed=self._processed_logprobs))

    def _forward(self, chunks: collections.abc.Sequence[Chunk]) -> torch.Tensor:
        """Logits float32 [R, V] of the chunks' rows; none for a rank that only serves the others."""
        if not chunks:
            self._model.idle()
            return torch.empty(0, self._model.config.vocab_size, device=self._model.device)
        spans = [Span(chunk.sequence.routes, chunk.start, chunk.length) for chunk in chunks]
        with recording(spans, self._model.config):
            return self._model.forward(step_tensors(chunks).on(self._model.device), self._cache)


def step_tensors(chunks: collections.abc.Sequence[Chunk]) -> StepTensors:
    """The chunks side by side. A block table is padded with 0s that nothing reads."""
    width = max(-(-chunk.stop // BLOCK_SIZE) for chunk in chunks)
    tables = np.zeros((len(chunks), width), np.int32)
    token_ids = [np.array(chunk.sequence.token_ids[chunk.start : chunk.stop], np.int32) for chunk in chunks]
    positions = [np.arange(chunk.start, chunk.stop) for chunk in chunks]
    slots = []
    for table, chunk, at in zip(tables, chunks, positions, strict=True):
        blocks = chunk.sequence.block_table[:width]
        table[: len(blocks)] = blocks
        slots.append(table[at // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + at % BLOCK_SIZE)
    ends = np.cumsum([chunk.length for chunk in chunks])
    rows = np.array([chunk.num_rows for chunk in chunks])
    return StepTensors(
        token_ids=torch.from_numpy(np.concatenate(token_ids)),
        positions=torch.from_numpy(np.concatenate(positions).astype(np.int32)),
        slots=torch.from_numpy(np.concatenate(slots)),
        query_start=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        block_tables=torch.from_numpy(tables),
        sample_rows=torch.from_numpy(np.arange(rows.sum()) + np.repeat(ends - np.cumsum(rows), rows)),
    )
