"""Constants of the numerics profile that torch-free code needs too."""

BLOCK_SIZE = 32  # positions in one block of the KV cache, and in one block of attention
PANEL = 32  # output rows in one packed panel of a linear's weight
K_BLOCK = 256  # products that are summed before the sum joins a linear's running total
LANES = 16  # lanes of a row reduction
TILE_K = 32  # products that one tile instruction of native-amx/1 adds
MAX_HEAD_DIM = 256  # what the attention kernels have room for
MAX_TOP_K = 32  # experts of one token that the routers have room for
