"""Means, intervals and pass@k against numbers worked out by hand, and that the order of items is not seen."""

import itertools
import math
import random

import pytest

from batchgen.evals.statistics import summarise


def test_by_hand() -> None:
    found = summarise([[1.0, 0.0], [1.0, 1.0], [0.0, None], [0.0, 0.0]], [1, 2])
    assert (found.items, found.samples, found.failed) == (4, 2, 1)
    assert found.score == 3 / 8
    assert found.by_sample == (0.5, 0.25)
    # Means of the items 0.5, 1, 0, 0: variance 0.2291666; t of 3 degrees of freedom.
    assert found.over_items == pytest.approx(3.182 * math.sqrt(0.22916666666666666 / 4))
    # Means of the samples 0.5 and 0.25: variance 0.03125; t of 1 degree.
    assert found.over_seeds == pytest.approx(12.706 * math.sqrt(0.03125 / 2))
    assert found.pass_at == {"1": 3 / 8, "2": 0.5}


def test_one_item_or_sample_has_no_interval() -> None:
    alone = summarise([[1.0]])
    assert (alone.over_items, alone.over_seeds) == (None, None)
    with pytest.raises(ValueError, match="no item"):
        summarise([])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_choices_that_hold_a_right_one(n: int) -> None:
    for right in range(n + 1):
        item = [1.0] * right + [0.0] * (n - right)
        for k in range(1, n + 1):
            drawn = list(itertools.combinations(item, k))
            expected = sum(1 in each for each in drawn) / len(drawn)
            assert summarise([item], [k]).pass_at[str(k)] == pytest.approx(expected, abs=1e-15)


def test_part_of_a_point_is_no_pass() -> None:
    assert summarise([[0.5, 0.5]], [2]).pass_at == {"2": 0.0}
    assert summarise([[0.5, 0.5]]).score == 0.5


def test_the_order_of_items_is_not_seen() -> None:
    chance = random.Random(3)
    items = [[chance.random() for _ in range(3)] for _ in range(200)]
    expected = summarise(items, [1])
    for _ in range(5):
        chance.shuffle(items)
        assert summarise(items, [1]) == expected


def test_the_interval_holds_what_it_should() -> None:
    """Of many draws of 200 fair coins, about 95 in a hundred intervals hold the half."""
    chance = random.Random(5)
    held = 0
    for _ in range(600):
        found = summarise([[float(chance.random() < 0.5)] for _ in range(200)])
        assert found.over_items is not None
        held += abs(found.score - 0.5) <= found.over_items
    assert 0.92 < held / 600 < 0.98
