"""Constants of the numerics profile that torch-free code needs too."""

BLOCK_SIZE = 32  # positions in one block of the KV cache, and in one block of attention
