"""Tests that need an NVIDIA GPU: the marks, and what goes up to it."""

from typing import TypeVar

import pytest
import torch

from batchgen.kernels import PackedExperts, PackedWeight, Pairs

T = TypeVar("T", torch.Tensor, PackedWeight, PackedExperts, Pairs, tuple[torch.Tensor, torch.Tensor])

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]


def up(x: T) -> T:
    """A copy on the GPU."""
    if isinstance(x, PackedWeight | PackedExperts):
        return x._replace(data=x.data.cuda())
    if isinstance(x, Pairs):
        return Pairs(x.rows.cuda(), x.slots.cuda())
    if isinstance(x, tuple):
        return x[0].cuda(), x[1].cuda()
    return x.cuda()


def nan_as_one(x: torch.Tensor) -> torch.Tensor:
    """On the CPU, every NaN the same one: which NaN comes out of a sum is the processor's choice."""
    x = x.cpu()
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x)
