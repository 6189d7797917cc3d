"""A decoder without an engine: the logits of every position of one sequence, in chunks of the test's choosing."""

from collections.abc import Sequence
from pathlib import Path

import torch

from batchgen.layers.step import StepTensors
from batchgen.loader import LoadedModel
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.packed import PackedWeights


def open_decoder(model: LoadedModel, cache: Path) -> Decoder:
    """`cache` is a folder for the packed weights."""
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(model.path), cache, "tiny")
    return Decoder(model.config, weights.tensors, model.max_model_len)


def position_logits(decoder: Decoder, ids: Sequence[int], cuts: Sequence[int]) -> torch.Tensor:
    """Float32 [len(ids), V], computed in chunks that end at `cuts`. Cuts at every position are decoding."""
    cache = decoder.new_cache(6)
    table = [4, 0, 3, 1, 5][: -(-len(ids) // 32)]
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        positions = range(start, stop)
        step = StepTensors(
            token_ids=torch.tensor(ids[start:stop], dtype=torch.int32),
            positions=torch.tensor(positions, dtype=torch.int32),
            slots=torch.tensor([table[p // 32] * 32 + p % 32 for p in positions]),
            query_start=torch.tensor([0, stop - start], dtype=torch.int32),
            block_tables=torch.tensor([table], dtype=torch.int32),
            sample_rows=torch.arange(stop - start),
        )
        parts.append(decoder.forward(step, cache).clone())
    return torch.cat(parts)
