"""The paged KV cache: blocks of 32 positions, for every layer."""

import torch

from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.cpu.memory import zeros
from batchgen.models.config import ModelConfig


def block_bytes(config: ModelConfig) -> int:
    """Bytes that one block takes in all layers together."""
    return 2 * 2 * config.num_layers * config.num_kv_heads * BLOCK_SIZE * config.head_dim


def allocate(config: ModelConfig, num_blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys bf16 [blocks, Hk, D/2, 32, 2] and values bf16 [blocks, Hk, 16, D, 2] of each layer.

    Keys are laid out as a packed linear weight whose outputs are positions, values as one whose inputs are positions,
    so that attention runs on the linear's inner loop. Raises EngineError when there is no memory for them.
    """
    Hk, D = config.num_kv_heads, config.head_dim
    return [
        (
            zeros(num_blocks, Hk, D // 2, BLOCK_SIZE, 2, dtype=torch.bfloat16),
            zeros(num_blocks, Hk, BLOCK_SIZE // 2, D, 2, dtype=torch.bfloat16),
        )
        for _ in range(config.num_layers)
    ]
