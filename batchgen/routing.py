"""Routing: how the tokens of a MoE layer choose experts. What a model's config says, and its router computes."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Routing:
    """The scores of the experts and what becomes of the best; defined in kernels/reference/moe.py."""

    top_k: int
    scoring: Literal["softmax", "sigmoid"]
    norm_topk: bool  # the weights of the chosen experts are divided by their sum
    scale: float  # a float32 value, by which they are multiplied at last
