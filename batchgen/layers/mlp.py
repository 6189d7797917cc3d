"""The gated feed-forward block."""

from typing import NamedTuple

import torch

from batchgen import kernels
from batchgen.kernels import PackedWeight


class GatedMlp(NamedTuple):
    """The feed-forward part of one layer."""

    gate_up: PackedWeight  # [2 I, H]: gate above up
    down: PackedWeight  # [H, I]

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """x bf16 [T, H] -> residual (None: 0) + down(silu(gate x) * up x), float32 [T, H]."""
        return kernels.linear(kernels.linear_silu_mul(x, self.gate_up), self.down, residual=residual)
