"""Load balancing: the published example to the slot, and what must hold for any load."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import EngineError
from batchgen.parallel.eplb import Greedy, Load, Move, moves, rank_loads, rebalance, settled
from batchgen.parallel.placement import Placement, initial, permuted


def load_of(*rows: int) -> Load:
    return np.array(rows, dtype=np.int64)


@pytest.mark.parametrize(
    ("load", "slots"),
    [
        (
            load_of(90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
            (5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1),
        ),
        (
            load_of(20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
            (7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1),
        ),
    ],
)
def test_the_published_example(load: Load, slots: tuple[int, ...]) -> None:
    assert rebalance(load, 16, groups=4, nodes=2, ranks=8) == slots


@st.composite
def problems(draw: st.DrawFn) -> tuple[Load, int, int]:
    """A load, a number of slots, a number of ranks."""
    experts = draw(st.integers(1, 24))
    ranks = draw(st.integers(1, min(8, experts)))
    slots = experts + draw(st.integers(0, experts))
    rows = draw(
        st.lists(st.integers(0, draw(st.sampled_from([1, 5, 10**6, 2**40]))), min_size=experts, max_size=experts)
    )
    return load_of(*rows), slots, ranks


@settings(max_examples=200)
@given(problems())
def test_every_expert_has_a_slot_and_every_rank_its_number(problem: tuple[Load, int, int]) -> None:
    load, num_slots, ranks = problem
    placed = Placement(len(load), rebalance(load, num_slots, 1, 1, ranks), ranks)  # refuses an expert without a slot
    assert len(placed.slots) == num_slots
    assert rebalance(load, num_slots, 1, 1, ranks) == placed.slots


@settings(max_examples=200)
@given(problems())
def test_copies_go_where_the_load_is(problem: tuple[Load, int, int]) -> None:
    """No expert could give a copy to another and both be better off."""
    load, num_slots, ranks = problem
    counts = np.bincount(rebalance(load, num_slots, 1, 1, ranks), minlength=len(load))
    for given_to in np.flatnonzero(counts > 1):
        before_its_last = load[given_to] / (counts[given_to] - 1)
        assert all(load / counts <= before_its_last)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_copies_of_a_hot_expert_are_on_different_ranks(ranks: int) -> None:
    load = load_of(*[1] * 15, 1000)
    placed = Placement(16, rebalance(load, 16 + ranks - 1, 1, 1, ranks), ranks)
    assert sorted(placed.ranks()[placed.copies()[15]].tolist()) == list(range(ranks))


def test_the_ranks_of_a_skewed_load_become_equal() -> None:
    load = load_of(*[1000, 900, 800, 10, 10, 10, 10, 10] * 2)
    before = rank_loads(load, initial(16, 4, 8))
    after = rank_loads(load, Placement(16, rebalance(load, 24, 1, 1, 4), 4))
    assert max(before) > 1.5 * sum(before) / 4
    assert max(after) < 1.15 * sum(after) / 4
    assert sum(before) == pytest.approx(load.sum())


def test_ties_are_decided() -> None:
    """Equal loads: copies of the lowest experts; equal shares: the lower slot first, on the lowest rank."""
    assert rebalance(load_of(*[7] * 6), 8, 1, 1, 4) == (2, 0, 3, 1, 4, 0, 5, 1)
    assert sorted(rebalance(load_of(*[0] * 4), 8, 1, 1, 2)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_groups_stay_on_a_node() -> None:
    draw = random.Random(3)
    for _ in range(50):
        slots = rebalance(load_of(*[draw.randrange(1000) for _ in range(16)]), 24, groups=4, nodes=2, ranks=4)
        halves = [{expert // 4 for expert in slots[:12]}, {expert // 4 for expert in slots[12:]}]
        assert not halves[0] & halves[1]
        assert [len(half) for half in halves] == [2, 2]


def test_groups_that_do_not_divide_over_the_nodes_are_no_groups() -> None:
    load = load_of(5, 3, 9, 1, 4, 8)
    assert rebalance(load, 8, groups=3, nodes=2, ranks=4) == rebalance(load, 8, groups=1, nodes=1, ranks=4)


@pytest.mark.parametrize(
    ("slots", "groups", "nodes", "ranks"), [(5, 1, 1, 2), (6, 4, 1, 2), (7, 2, 2, 2), (8, 2, 2, 3), (6, 1, 1, 7)]
)
def test_what_cannot_be_divided_is_refused(slots: int, groups: int, nodes: int, ranks: int) -> None:
    with pytest.raises(EngineError, match="cannot be placed"):
        rebalance(load_of(*[1] * 6), slots, groups, nodes, ranks)


def applied(old: Placement, todo: list[Move]) -> tuple[int, ...]:
    slots = list(old.slots)
    for move in todo:
        slots[move.target] = old.slots[move.source]
    return tuple(slots)


@settings(max_examples=200)
@given(problems(), st.integers(0, 100))
def test_moves_lead_to_the_new_placement(problem: tuple[Load, int, int], seed: int) -> None:
    load, num_slots, ranks = problem
    old = permuted(initial(len(load), ranks, num_slots - len(load)), seed)
    wanted = Placement(len(load), rebalance(load, num_slots, 1, 1, ranks), ranks)
    assert applied(old, moves(old, wanted)) == wanted.slots
    new = settled(wanted, old)
    assert applied(old, moves(old, new)) == new.slots
    assert sorted(rank_loads(load, new)) == pytest.approx(sorted(rank_loads(load, wanted)))
    assert len(moves(old, new)) <= len(moves(old, wanted))
    assert moves(new, new) == []


def test_a_copy_on_the_own_rank_is_the_source() -> None:
    old, new = Placement(3, (0, 1, 2, 0), 2), Placement(3, (1, 1, 2, 0), 2)
    assert moves(old, new) == [Move(1, 0)]
    assert moves(Placement(3, (2, 0, 0, 1), 2), Placement(3, (2, 0, 1, 0), 2)) == [Move(3, 2), Move(2, 3)]


def test_renumbering_moves_nothing_where_only_names_differ() -> None:
    now = Placement(6, (0, 1, 2, 3, 4, 5), 3)
    assert settled(Placement(6, (5, 4, 1, 0, 2, 3), 3), now) == now


def test_greedy_moves_only_for_a_gain() -> None:
    now = Greedy().start(8, 2, 0)
    assert now == initial(8, 2)
    assert Greedy().again(load_of(*[100] * 8), now) == now
    assert Greedy().again(load_of(*[0] * 8), now).slots_of(0) == now.slots_of(0)
    skewed = load_of(100, 100, 100, 100, 1, 1, 1, 1)
    moved = Greedy().again(skewed, now)
    assert rank_loads(skewed, moved) == [202, 202]
    assert len(moves(now, moved)) == 4
    assert Greedy(gain=0.6).again(skewed, now) == now
