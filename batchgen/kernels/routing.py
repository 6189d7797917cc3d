"""What a router is asked for, and the list of (row, expert) pairs that comes of it."""

from typing import NamedTuple

import torch

from batchgen.routing import Routing

__all__ = ["Pairs", "Routing"]


class Pairs(NamedTuple):
    """What the experts of a rank are to do, one entry a pair; any order, any number of pairs."""

    rows: torch.Tensor  # int32 [P], of the rows at hand
    slots: torch.Tensor  # int32 [P], of the experts at hand
