"""What comes back from the experts is what one rank gives, to the byte: for any number of ranks, any placement, any
spread of the tokens, with copies and with moves.

The fault it guards against: a sum on the way, an answer at another token's or expert's place, an expert that is not the
one the placement names. The counter-tests plant each.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bitwise import assert_bitwise
from support.ranks import Ranks
from support.ranks_exchange import (
    Case,
    expected,
    many,
    order_of_arrival,
    summed,
    summed_by_rank,
    tokens_of,
)

# 51 tokens each: one rank has nearly all of them, one has a single one, and the others have none.
SPREADS = {
    1: (51,),
    2: (50, 1),
    3: (0, 1, 50),
    4: (1, 0, 50, 0),
    8: (0, 50, 0, 0, 1, 0, 0, 0),
}
EVEN = {2: (26, 25), 3: (17, 17, 17), 4: (13, 13, 13, 12), 8: (7, 7, 7, 6, 6, 6, 6, 6)}


def check(ranks: Ranks, cases: list[Case]) -> int:
    """Run them on as many ranks as they have counts, and compare; how many slots were moved."""
    size, moved = len(cases[0].counts), 0
    of_rank = ranks.run(size, many, cases)
    for i, case in enumerate(cases):
        here = [of_rank[rank][i] for rank in range(size)]
        for step, wanted in enumerate(expected(case)):
            found = np.concatenate([answers[step] for answers, _ in here])
            assert_bitwise(found, wanted.view(torch.uint8).numpy(), f"{case}, {step}")
        moved += here[0][1]
    return moved


@pytest.mark.parametrize("size", SPREADS)
def test_every_size_placement_and_spread(ranks: Ranks, size: int) -> None:
    counts = [SPREADS[size], SPREADS[size][::-1], EVEN.get(size, SPREADS[size])]
    cases = [
        Case(spread, redundant=redundant, shuffle=shuffle)
        for spread in counts
        for redundant in (0, 1, 8)
        for shuffle in (None, 5)
    ]
    cases += [replace(cases[0], dtype=torch.bfloat16), replace(cases[-1], dtype=torch.bfloat16)]
    cases += [Case(counts[0], experts=11, k=3, shuffle=2), Case(counts[0], experts=9, k=9), Case(counts[1], k=1)]
    assert check(ranks, cases) == 0


@pytest.mark.parametrize("size", SPREADS)
def test_nobody_has_a_token(ranks: Ranks, size: int) -> None:
    check(ranks, [Case((0,) * size), Case((0,) * size, redundant=8, shuffle=1)])


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("interval", [1, 7, 30])
def test_moves(ranks: Ranks, size: int, interval: int) -> None:
    steps = {1: 6, 7: 15, 30: 31}[interval]
    case = Case(SPREADS[size], shuffle=3, steps=steps, interval=interval, hidden=4)
    assert check(ranks, [case, replace(case, redundant=1), replace(case, redundant=8)]) > 30


@pytest.mark.parametrize("size", SPREADS)
def test_padded_to_static_shapes(ranks: Ranks, size: int) -> None:
    case = Case(SPREADS[size], padded=True)
    cases = [case, replace(case, dtype=torch.bfloat16), replace(case, redundant=8, shuffle=4, steps=4, interval=2)]
    check(ranks, [*cases, Case((0,) * size, padded=True)])


def test_counter_moves_without_the_weights(ranks: Ranks) -> None:
    case = Case(EVEN[4], shuffle=3, steps=3, interval=1, forget_moves=True)
    with pytest.raises(AssertionError, match="elements differ"):
        check(ranks, [case])


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_row_travels_to_a_rank_once_in_a_fixed_order(ranks: Ranks, size: int) -> None:
    case = Case(SPREADS[size], shuffle=5)
    seen = []
    for tokens, pairs in ranks.run(size, order_of_arrival, case):
        assert tokens == sorted(set(tokens))  # ranks hold their tokens in order, so source rank and token ascend
        assert pairs == sorted(pairs)
        seen += pairs
    _, ids, _ = tokens_of(case, 1, 0)
    assert sorted(seen) == [[t, j, int(e)] for t, row in enumerate(ids) for j, e in enumerate(row)]


def at_home(case: Case) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    answers = expected(case)[0]
    sums: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = summed(answers, tokens_of(case, 1, 0)[2]).numpy()
    return sums


def by_rank(ranks: Ranks, case: Case, *, own_first: bool = False) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.concatenate(ranks.run(len(case.counts), summed_by_rank, case, own_first))


def test_counter_a_sum_for_each_rank_is_caught_at_four(ranks: Ranks) -> None:
    """Also where each rank's part is one addend or none: the order of the ranks is not that of the experts."""
    four = Case(EVEN[4], k=4, shuffle=5)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_bitwise(by_rank(ranks, four), at_home(four))


def test_counter_two_ranks_cannot_see_it(ranks: Ranks) -> None:
    """Two addends commute: with two parts no order is wrong, be it of experts or of ranks."""
    two = Case(EVEN[2], k=2, shuffle=5)
    assert_bitwise(by_rank(ranks, two), at_home(two))
    busy = replace(two, k=8)
    assert_bitwise(by_rank(ranks, busy, own_first=True), by_rank(ranks, busy))
    four = replace(busy, counts=EVEN[4])
    with pytest.raises(AssertionError, match="elements differ"):
        assert_bitwise(by_rank(ranks, four, own_first=True), by_rank(ranks, four))
