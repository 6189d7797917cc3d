"""The size of the paged KV cache: blocks of 32 positions, for every layer."""

from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.models.config import ModelConfig


def block_bytes(config: ModelConfig) -> int:
    """Bytes that one block takes in all layers together."""
    return 2 * 2 * config.num_layers * config.num_kv_heads * BLOCK_SIZE * config.head_dim
