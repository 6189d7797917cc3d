"""Memory for large tensors, on the device that they are for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from batchgen.errors import EngineError
from batchgen.kernels.cpu import memory


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On a CPU pages take memory when they are first written. Raises EngineError when there is none."""
    if device.type == "cpu":
        return memory.zeros(*shape, dtype=dtype)
    with room_for("the KV cache and the logits"):
        return torch.zeros(shape, dtype=dtype, device=device)


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Inside it, a GPU's lack of memory is an EngineError that says for what."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        hint = "end other programs on it, or lower --max-num-batched-tokens, --max-num-seqs or --memory-fraction"
        raise EngineError(f"the GPU has no memory left for {what}", hint=hint) from error
