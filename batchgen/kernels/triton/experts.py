"""The experts of a layer on the pairs at hand: sorted by slot, gate and up with silu * between, down; rows by pair.

How it is tiled follows from the number of pairs and slots; it cannot be seen in the bits (grouped.py).
"""

from typing import NamedTuple

import torch

from batchgen.errors import EngineError
from batchgen.kernels.routing import Pairs
from batchgen.kernels.triton.checks import check
from batchgen.kernels.triton.grouped import Cut, grouped
from batchgen.kernels.triton.pairs import sort_pairs

_DEPTH = 16  # as in linear.py


class Tiles(NamedTuple):
    """How both products are cut."""

    m: int  # pairs of one slot
    up: Cut
    down: Cut


class Rule(NamedTuple):
    """What is taken up to so many pairs a slot on average (None: any number)."""

    pairs: int | None
    tiles: Tiles


# Of an H200; few pairs are bound by the bytes of the experts, many by the matrix units.
RULES = (
    Rule(6, Tiles(16, Cut(64, 128, 4, 3), Cut(64, 128, 4, 3))),
    Rule(24, Tiles(32, Cut(64, 128, 4, 3), Cut(64, 128, 4, 3))),
    Rule(96, Tiles(64, Cut(128, 64, 4, 4), Cut(128, 64, 4, 3))),
    Rule(None, Tiles(128, Cut(128, 64, 8, 4, programs=1), Cut(256, 64, 8, 3, programs=1, is_flat=True))),
)


def choose(P: int, S: int) -> Tiles:
    """For P pairs of S slots."""
    return next(rule.tiles for rule in RULES if rule.pairs is None or rule.pairs * S >= P)


def experts(x: torch.Tensor, pairs: Pairs, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """down_s(silu(gate_s x) * up_s x) of each pair's row and slot s.

    x bf16 [R, H]; gate_up bf16 [S, 2 I, H], gate above up; down bf16 [S, H, I] -> bf16 [P, H]. A pair of slot -1 is
    none: its row holds anything.
    """
    return run_experts(x, pairs, gate_up, down, choose(len(pairs.slots), len(gate_up)))


def run_experts(x: torch.Tensor, pairs: Pairs, gate_up: torch.Tensor, down: torch.Tensor, tiles: Tiles) -> torch.Tensor:
    """The same by given tiles; for proofs and tuning."""
    (R, H), (S, double, _), P = x.shape, gate_up.shape, len(pairs.slots)
    check("x", x, torch.bfloat16, R, H)
    check("the pairs' rows", pairs.rows, torch.int32, P)
    check("the pairs' slots", pairs.slots, torch.int32, P)
    check("the experts' gate and up", gate_up, torch.bfloat16, S, double, H)
    check("the experts' down", down, torch.bfloat16, S, H, double // 2)
    if H % _DEPTH or double % (2 * _DEPTH):
        raise EngineError(f"experts of {H} inputs and {double // 2} inner values; both must be multiples of {_DEPTH}")
    y = torch.empty(P, H, dtype=torch.bfloat16, device=x.device)
    if P:
        found = sort_pairs(pairs, S, tiles.m, x)
        inner = torch.empty(P, double // 2, dtype=torch.bfloat16, device=x.device)
        grouped(x, gate_up, found, inner, (tiles.m, tiles.up), gated=True, like=x)
        grouped(inner, down, found, y, (tiles.m, tiles.down), like=x)
    return y
