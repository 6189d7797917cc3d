"""Placements: every expert has a slot, every slot a rank, every row a copy that has its expert."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import EngineError
from batchgen.parallel.placement import SPREAD, Placement, bounds, initial, permuted, spread


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Any that can be: up to 40 experts on up to 8 ranks."""
    experts = draw(st.integers(1, 40))
    placement = initial(experts, draw(st.integers(1, min(8, experts))), draw(st.integers(0, experts)))
    return permuted(placement, draw(st.integers(0, 2**32)))


@given(placements())
def test_every_slot_is_on_one_rank(placement: Placement) -> None:
    by_rank = [placement.slots_of(rank) for rank in range(placement.size)]
    assert tuple(expert for slots in by_rank for expert in slots) == placement.slots
    counts = [len(slots) for slots in by_rank]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)
    assert np.bincount(placement.ranks(), minlength=placement.size).tolist() == counts
    assert placement.ranks().tolist() == sorted(placement.ranks().tolist())


@given(placements())
def test_every_expert_has_its_copies(placement: Placement) -> None:
    copies = placement.copies()
    assert sorted(slot for slots in copies for slot in slots) == list(range(len(placement.slots)))
    for expert, slots in enumerate(copies):
        assert slots
        assert slots == sorted(slots)
        assert {placement.slots[slot] for slot in slots} == {expert}


@settings(max_examples=30)
@given(placements(), st.integers(0, 7), st.integers(0, 100_000))
def test_the_table_says_what_the_target_is(placement: Placement, rank: int, row: int) -> None:
    table = placement.table()
    columns = SPREAD if len(placement.slots) > placement.num_experts else 1
    assert table.shape == (placement.num_experts, columns)
    for expert in range(placement.num_experts):
        target = placement.target(expert, rank, row)
        assert placement.slots[target] == expert
        assert table[expert, spread(rank, row) % columns] == target


@pytest.mark.parametrize("copies", range(1, 9))
def test_rows_are_spread_evenly_over_the_copies(copies: int) -> None:
    placement = Placement(2, (0, *[1] * copies), 1)
    for rows in (range(SPREAD), range(7 * SPREAD, 8 * SPREAD)):
        counts = np.bincount([placement.target(1, 3, row) for row in rows], minlength=copies + 1)
        assert counts[1:].tolist() == [SPREAD // copies] * copies


def test_neighbours_of_one_step_take_several_copies() -> None:
    placement = Placement(2, (0, 1, 1, 1, 1), 1)
    assert {placement.target(1, 0, row) for row in range(8)} == {1, 2, 3, 4}
    assert {placement.target(1, rank, 0) for rank in range(4)} == {1, 2, 3, 4}


def test_the_first_placement() -> None:
    assert initial(5, 2).slots_of(0) == (0, 1, 2)
    assert initial(5, 2).slots_of(1) == (3, 4)
    assert initial(4, 4, 4).slots == (0, 1, 2, 3, 0, 1, 2, 3)
    assert bounds(11, 4) == [0, 3, 6, 9, 11]


def test_a_permutation_keeps_the_slots() -> None:
    first = initial(16, 4, 3)
    assert sorted(permuted(first, 1).slots) == sorted(first.slots)
    assert permuted(first, 1) == permuted(first, 1)
    assert len({permuted(first, seed).slots for seed in range(20)}) == 20


@pytest.mark.parametrize(
    ("experts", "size", "redundant", "message"),
    [
        (4, 5, 0, "5 ranks cannot share 4 experts"),
        (4, 5, 4, "5 ranks cannot share 4 experts"),
        (4, 2, -1, "-1 redundant experts of 4"),
        (4, 2, 5, "5 redundant experts of 4"),
    ],
)
def test_what_cannot_be_placed(experts: int, size: int, redundant: int, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        initial(experts, size, redundant)


@pytest.mark.parametrize("slots", [(0, 1, 1), (0, 1, 2, 3), (), (0, 1, 2, -1)])
def test_an_expert_without_a_slot_is_refused(slots: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match="do not hold every one of 3 experts"):
        Placement(3, slots, 2)
