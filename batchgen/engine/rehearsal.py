"""The largest step that an engine on a GPU can be given, run once at its start.

What a step needs beside weights and cache is known only when it runs: here that is before any row is made.
"""

import torch

from batchgen.engine.scheduler import Limits
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.memory import room_for
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import AnyDecoder, Cache


@torch.inference_mode()
def rehearse(decoder: AnyDecoder, cache: list[Cache], limits: Limits, max_model_len: int) -> None:
    """Compute `max_num_batched_tokens` tokens and the logits of `max_num_seqs`, and forget them.

    Keys and values are written where nobody has anything yet. Raises EngineError when memory runs out.
    """
    what = f"a step of {limits.max_num_batched_tokens} tokens and the logits of {limits.max_num_seqs} sequences"
    with room_for(what):
        step = _largest(limits, max_model_len).on(decoder.device)
        logits = decoder.forward(step, cache)
        torch.empty_like(logits)  # the sampler edits a copy where a row has penalties or biases
        torch.cuda.synchronize(decoder.device)


def _largest(limits: Limits, max_model_len: int) -> StepTensors:
    """Sequences of full length, one after the other, that share the blocks of the longest."""
    total = limits.max_num_batched_tokens
    ends = [*range(max_model_len, total, max_model_len), total]
    at = torch.arange(total)
    positions = at % max_model_len
    table = torch.arange(-(-min(total, max_model_len) // BLOCK_SIZE), dtype=torch.int32)
    return StepTensors(
        token_ids=torch.zeros(total, dtype=torch.int32),
        positions=positions.to(torch.int32),
        slots=positions,
        query_start=torch.tensor([0, *ends], dtype=torch.int32),
        block_tables=table.expand(len(ends), -1).contiguous(),
        sample_rows=at[: limits.max_num_seqs],
    )
