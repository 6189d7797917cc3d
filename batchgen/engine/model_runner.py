"""Runs one step of a model: chunks of sequences to tensors, forward, draw."""

import collections.abc

import torch

from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.sampling import draw
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.golden import require_rounding
from batchgen.kernels.memory import room_for
from batchgen.layers.step import StepTensors
from batchgen.models.decoder import Cache, Decoder


class ModelRunner:
    """Owns the KV cache; reads sequences, changes none."""

    def __init__(self, model: Decoder, cache: list[Cache], *, processed_logprobs: bool) -> None:
        self._model = model
        self._cache = cache
        self._processed_logprobs = processed_logprobs

    @torch.inference_mode()
    def step(self, chunks: collections.abc.Sequence[Chunk]) -> list[Sampled]:
        """Compute every chunk and draw for those with `samples`, in their order.

        Raises EngineError where floats are not rounded to nearest, and when a GPU's memory runs out.
        """
        require_rounding()
        sequences = [chunk.sequence for chunk in chunks if chunk.samples]
        with room_for(f"a step of {sum(chunk.length for chunk in chunks)} tokens"):
            logits = self._model.forward(step_tensors(chunks).on(self._model.device), self._cache)
            return draw(logits, sequences, processed=self._processed_logprobs) if sequences else []


def step_tensors(chunks: collections.abc.Sequence[Chunk]) -> StepTensors:
    """The chunks side by side. A block table is padded with 0s that nothing reads."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    sample_rows: list[int] = []
    for chunk in chunks:
        table = chunk.sequence.block_table
        span = range(chunk.start, chunk.stop)
        token_ids += chunk.sequence.token_ids[chunk.start : chunk.stop]
        positions += span
        slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in span]
        query_start.append(len(token_ids))
        if chunk.samples:
            sample_rows.append(len(token_ids) - 1)
    width = max(-(-chunk.stop // BLOCK_SIZE) for chunk in chunks)
    tables = [(chunk.sequence.block_table + [0] * width)[:width] for chunk in chunks]
    int32 = torch.int32
    return StepTensors(
        token_ids=torch.tensor(token_ids, dtype=int32),
        positions=torch.tensor(positions, dtype=int32),
        slots=torch.tensor(slots, dtype=torch.int64),
        query_start=torch.tensor(query_start, dtype=int32),
        block_tables=torch.tensor(tables, dtype=int32),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )
