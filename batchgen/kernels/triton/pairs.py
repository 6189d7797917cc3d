"""Pairs by slot, and the tiles that they fill, worked out on the device: nothing is read back.

Within a slot the pairs stay in their order. A tile is up to `m` pairs of one slot; tiles ascend by slot.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from batchgen.kernels.routing import Pairs
from batchgen.kernels.triton.launch import begin, options

_PART = 4096  # pairs of one program; up to so many are counted and sorted in one launch
_PARTS = 32  # but at most so many parts
_CHUNK = 1024  # pairs that a program looks at together; all of them, where there is one part


class Sorted(NamedTuple):
    """P pairs by slot. Those of slot -1 are left out: the last places hold anything."""

    rows: torch.Tensor  # int32 [P], the row of x of each
    order: torch.Tensor  # int32 [P], the number of each among the pairs given
    tiles: torch.Tensor  # int32 [tiles, 3]: slot, first place, place after the last
    used: torch.Tensor  # int32 [1], the tiles there are


@triton.jit
def _count(SLOTS, first, end, CHUNK: tl.constexpr, BINS: tl.constexpr):
    """How many pairs of first .. end each slot has."""
    counts = tl.zeros([BINS], tl.int32)
    for at in range(first, end, CHUNK):
        i = at + tl.arange(0, CHUNK)
        slots = tl.load(SLOTS + i, mask=i < end, other=-1)
        counts += tl.histogram(slots, BINS, mask=slots >= 0)
    return counts


@triton.jit(do_not_specialize=["P"])
def _count_part(SLOTS, COUNTS, P, part, CHUNK: tl.constexpr, BINS: tl.constexpr, PDL: tl.constexpr):
    """What each slot has in one part of the pairs."""
    begin(PDL)
    first = tl.program_id(0) * part
    counts = _count(SLOTS, first, tl.minimum(first + part, P), CHUNK, BINS)
    tl.store(COUNTS + tl.program_id(0) * BINS + tl.arange(0, BINS), counts)


@triton.jit(do_not_specialize=["P", "S"])
def _sort(
    ROWS, SLOTS, SORTED, ORDER, TILES, USED, COUNTS, P, S, part,
    M: tl.constexpr, CHUNK: tl.constexpr, BINS: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The pairs of one slot in one part. PARTS 1: there is one part, and every program counts it itself."""
    slot, own = tl.program_id(0), tl.program_id(1)
    bins = tl.arange(0, BINS)
    begin(PDL)
    if PARTS == 1:
        counts, skipped = _count(SLOTS, 0, P, CHUNK, BINS), 0
    else:
        parts = tl.arange(0, PARTS)[:, None]
        each = tl.load(COUNTS + parts * BINS + bins[None, :], mask=parts < tl.num_programs(1), other=0)
        counts = tl.sum(each, 0)
        skipped = tl.sum(tl.where((bins == slot)[None, :] & (parts < own), each, 0))
    tiles = (counts + M - 1) // M
    before, start = tl.sum(tl.where(bins < slot, tiles, 0), 0), tl.sum(tl.where(bins < slot, counts, 0), 0)
    mine = tl.sum(tl.where(bins == slot, counts, 0), 0)
    if own == 0:
        for at in range(0, tl.cdiv(mine, M), 32):
            tile = at + tl.arange(0, 32)
            to, there = TILES + (before + tile) * 3, tile * M < mine
            tl.store(to, tl.zeros_like(tile) + slot, mask=there)
            tl.store(to + 1, start + tile * M, mask=there)
            tl.store(to + 2, start + tl.minimum(tile * M + M, mine), mask=there)
        if slot == S - 1:
            tl.store(USED, before + tl.cdiv(mine, M))
    if mine > 0:
        place = start + skipped
        end = tl.minimum(own * part + part, P)
        for at in range(own * part, end, CHUNK):
            i = at + tl.arange(0, CHUNK)
            is_mine = tl.load(SLOTS + i, mask=i < end, other=-1) == slot
            to = place + tl.cumsum(is_mine.to(tl.int32), 0) - 1
            tl.store(ORDER + to, i, mask=is_mine)
            tl.store(SORTED + to, tl.load(ROWS + i, mask=is_mine, other=0), mask=is_mine)
            place += tl.sum(is_mine.to(tl.int32), 0)


def most_tiles(P: int, S: int, m: int) -> int:
    """As many tiles of m pairs as P pairs of S slots can fill at most."""
    return min(P, min(P, S) + P // m)


def sort_pairs(pairs: Pairs, S: int, m: int, like: torch.Tensor) -> Sorted:
    """Of P > 0 pairs of the slots 0 .. S - 1, or -1 for none; `like`: the rows x, by which it is launched."""
    P = len(pairs.slots)
    part = _PART
    while triton.cdiv(P, part) > _PARTS:
        part *= 2
    parts, bins = triton.cdiv(P, part), max(256, triton.next_power_of_2(S))
    chunk = _CHUNK if parts > 1 else max(_CHUNK, triton.next_power_of_2(P))
    how = {"num_warps": chunk // 256, **options(like)}
    whole = torch.empty(2 * P, dtype=torch.int32, device=like.device)
    tiles = torch.empty(most_tiles(P, S, m) * 3 + 1, dtype=torch.int32, device=like.device)
    found, counts = Sorted(whole[:P], whole[P:], tiles[1:].view(-1, 3), tiles[:1]), whole
    if parts > 1:
        counts = torch.empty(parts * bins, dtype=torch.int32, device=like.device)
        _count_part[(parts,)](pairs.slots, counts, P, part, chunk, bins, **how)
    _sort[(S, parts)](*pairs, *found, counts, P, S, part, m, chunk, bins, triton.next_power_of_2(parts), **how)
    return found
