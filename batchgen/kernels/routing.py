"""How the tokens of a MoE layer choose experts, and the list of (row, expert) pairs that comes of it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class Routing:
    """The scores of the experts and what becomes of the best; defined in reference/moe.py."""

    top_k: int
    scoring: Literal["softmax", "sigmoid"]
    norm_topk: bool  # the weights of the chosen experts are divided by their sum
    scale: float  # a float32 value, by which they are multiplied at last


class Pairs(NamedTuple):
    """What the experts of a rank are to do, one entry a pair; any order, any number of pairs."""

    rows: torch.Tensor  # int32 [P], of the rows at hand
    slots: torch.Tensor  # int32 [P], of the experts at hand
