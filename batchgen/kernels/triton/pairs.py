"""Pairs by slot, and the tiles that they fill, worked out on the device: nothing is read back.

Within a slot the pairs stay in their order. A tile is up to `m` pairs of one slot; tiles ascend by slot.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from batchgen.kernels.routing import Pairs
from batchgen.kernels.triton.launch import begin, options

_CHUNK = 4096  # pairs that a program looks at together
_FEW = 1024  # the same, where there are few


class Sorted(NamedTuple):
    """P pairs by slot. Those of slot -1 are left out: the last places hold anything."""

    rows: torch.Tensor  # int32 [P], the row of x of each
    order: torch.Tensor  # int32 [P], the number of each among the pairs given
    tiles: torch.Tensor  # int32 [tiles, 3]: slot, first place, place after the last
    used: torch.Tensor  # int32 [1], the tiles there are


@triton.jit(do_not_specialize=["P", "S"])
def _sort(
    ROWS, SLOTS, SORTED, ORDER, TILES, USED, P, S,
    M: tl.constexpr, CHUNK: tl.constexpr, BINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The pairs of one slot. Every program counts them all, for what comes before its own."""
    slot = tl.program_id(0)
    i, bins = tl.arange(0, CHUNK), tl.arange(0, BINS)
    begin(PDL)
    counts = tl.zeros([BINS], tl.int32)
    for first in range(0, P, CHUNK):
        s = tl.load(SLOTS + first + i, mask=first + i < P, other=-1)
        counts += tl.histogram(s, BINS, mask=s >= 0)
    tiles = (counts + M - 1) // M
    before, start = tl.sum(tl.where(bins < slot, tiles, 0), 0), tl.sum(tl.where(bins < slot, counts, 0), 0)
    mine = tl.sum(tl.where(bins == slot, counts, 0), 0)
    if slot == S - 1:
        tl.store(USED, before + tl.cdiv(mine, M))
    if mine == 0:
        return
    end = start + mine
    for first in range(0, tl.cdiv(mine, M), 32):
        tile = first + tl.arange(0, 32)
        at, there = TILES + (before + tile) * 3, tile * M < mine
        tl.store(at, tl.zeros_like(tile) + slot, mask=there)
        tl.store(at + 1, start + tile * M, mask=there)
        tl.store(at + 2, tl.minimum(start + tile * M + M, end), mask=there)
    for first in range(0, P, CHUNK):
        s = tl.load(SLOTS + first + i, mask=first + i < P, other=-1)
        is_mine = (s == slot).to(tl.int32)
        place = start + tl.cumsum(is_mine, 0) - 1
        tl.store(ORDER + place, first + i, mask=is_mine != 0)
        tl.store(SORTED + place, tl.load(ROWS + first + i, mask=is_mine != 0, other=0), mask=is_mine != 0)
        start += tl.sum(is_mine, 0)


def most_tiles(P: int, S: int, m: int) -> int:
    """As many tiles of m pairs as P pairs of S slots can fill at most."""
    return min(P, min(P, S) + P // m)


def sort_pairs(pairs: Pairs, S: int, m: int, like: torch.Tensor) -> Sorted:
    """Of P > 0 pairs of the slots 0 .. S - 1, or -1 for none; `like`: the rows x, by which it is launched."""
    P = len(pairs.slots)
    places = torch.empty(2 * P, dtype=torch.int32, device=like.device)
    tiles = torch.empty(most_tiles(P, S, m) * 3 + 1, dtype=torch.int32, device=like.device)
    found = Sorted(places[:P], places[P:], tiles[1:].view(-1, 3), tiles[:1])
    _sort[(S,)](
        *pairs, *found, P, S, m, _FEW if P <= _FEW else _CHUNK, max(256, triton.next_power_of_2(S)),
        num_warps=4 if P <= _FEW else 16, **options(like),
    )  # fmt: skip
    return found
