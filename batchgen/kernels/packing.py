"""The packed form of a linear's weight: what every kernel reads, what the disk cache holds."""

from typing import NamedTuple

import torch

from batchgen.kernels.constants import PANEL


class PackedWeight(NamedTuple):
    """data bf16 [P, K/2, 32, 2]: panels of 32 output rows, pairs of k next to each other, padded with zero rows.

    Sixteen rows' pairs are one 64-byte load, from which a shift and a mask make two float32 vectors.
    """

    data: torch.Tensor
    rows: int  # N, without the padding
    native: bool = False  # multiplied by the matrix unit (profile native-amx/1), not in the order of portable/1

    @property
    def columns(self) -> int:
        return self.data.shape[1] * 2


class PackedExperts(NamedTuple):
    """data bf16 [S, P, K/2, 32, 2]: the packed weights of S experts of one shape, one after the other."""

    data: torch.Tensor
    rows: int  # N of each, without the padding
    native: bool = False  # as of PackedWeight

    @property
    def slots(self) -> int:
        return self.data.shape[0]

    @property
    def columns(self) -> int:
        return self.data.shape[2] * 2

    def of(self, slot: int) -> PackedWeight:
        """The weight of one expert."""
        return PackedWeight(self.data[slot], self.rows, self.native)


def pack(weight: torch.Tensor, *, native: bool = False) -> PackedWeight:
    """Pack bf16 [N, K]; K must be even."""
    N, K = weight.shape
    P = -(-N // PANEL)
    padded = torch.nn.functional.pad(weight, (0, 0, 0, P * PANEL - N))
    return PackedWeight(padded.view(P, PANEL, K // 2, 2).permute(0, 2, 1, 3).contiguous(), N, native)


def pack_experts(weights: torch.Tensor, *, native: bool = False) -> PackedExperts:
    """Pack bf16 [S, N, K]; K must be even."""
    packed = [pack(weight).data for weight in weights]
    return PackedExperts(torch.stack(packed), weights.shape[1], native)


def unpack(weight: PackedWeight) -> torch.Tensor:
    """The inverse: bf16 [N, K]."""
    P, pairs, _, _ = weight.data.shape
    return weight.data.permute(0, 2, 1, 3).reshape(P * PANEL, pairs * 2)[: weight.rows]
