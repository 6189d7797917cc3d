"""Grouped-query attention with rotary positions over a paged cache."""

from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.kernels import PackedWeight
from batchgen.layers.step import StepTensors


class Attention(NamedTuple):
    """Self-attention of one layer; several query heads may share a key-value head."""

    qkv: PackedWeight  # [(Hq + 2 Hk) D, H]: q, k, v one below the other
    qkv_bias: torch.Tensor | None  # float32
    norms: tuple[torch.Tensor, torch.Tensor] | None  # weights of q's and k's norm, float32 [D]
    out: PackedWeight  # [H, Hq D]
    eps: float

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        step: StepTensors,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """x bf16 [T, H] -> residual + attention, float32 [T, H]; writes the tokens' keys and values to the cache."""
        qkv = kernels.linear(x, self.qkv, self.qkv_bias)
        q = kernels.rotary_store(qkv, self.norms, self.eps, rotary, (step.positions, step.slots), cache)
        mixed = kernels.attention(q, cache, step.block_tables, step.query_start, step.positions)
        return kernels.linear(mixed, self.out, residual=residual)
