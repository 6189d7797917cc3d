"""The fault that batch invariance is about, in a kernel that is otherwise right."""

import torch

from batchgen.kernels.packing import PackedWeight, unpack


def batch_dependent(
    x: torch.Tensor, weight: PackedWeight, bias: object = None, residual: object = None, out: object = None
) -> torch.Tensor:
    """A linear whose order of summation follows the number of rows, as a split-K chosen by the batch would."""
    w = unpack(weight).float()
    splits = 1 + len(x) % 3
    y = sum(a @ b.t() for a, b in zip(x.float().tensor_split(splits, 1), w.tensor_split(splits, 1), strict=True))
    for extra in (bias, residual):
        y = y + extra if isinstance(extra, torch.Tensor) else y
    assert isinstance(y, torch.Tensor)
    return y
