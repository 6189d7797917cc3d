"""The keys and values of single tokens, read back from the paged cache."""

import numpy as np
import torch

from batchgen.kernels.constants import BLOCK_SIZE


def cache_rows(cache: tuple[torch.Tensor, torch.Tensor], slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v, bf16 [T, Hk, D], of the tokens at `slots` (int64 [T], block * 32 + offset), as copies.

    cache: k bf16 [blocks, Hk, D/2, 32, 2] and v bf16 [blocks, Hk, 16, D, 2], as `rotary_store` writes them.
    """
    if slots.is_cuda:
        at = slots % BLOCK_SIZE
        k_pairs = cache[0][slots // BLOCK_SIZE, :, :, at, :]
        return k_pairs.flatten(2), cache[1][slots // BLOCK_SIZE, :, at // 2, :, at % 2]
    block, offset = np.divmod(slots.numpy(), BLOCK_SIZE)
    keys, values = (part.view(torch.int16).numpy() for part in cache)  # torch's indexing starts threads of its own
    k = keys[block, :, :, offset, :]  # [T, Hk, D/2, 2]
    v = values[block, :, offset // 2, :, offset % 2]
    bf16 = torch.bfloat16
    return torch.from_numpy(k).view(bf16).flatten(2), torch.from_numpy(v).view(bf16)
