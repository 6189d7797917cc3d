"""What a router decides, and what the experts are to do."""

from typing import NamedTuple

import torch


class Pairs(NamedTuple):
    """Which expert is to see which row."""

    rows: torch.Tensor  # int32 [P], index of a row of the arrived x
    slots: torch.Tensor  # int32 [P], index of a local slot
