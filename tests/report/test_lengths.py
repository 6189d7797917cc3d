"""Lengths: quantiles and bins against a plain list."""

import random

import numpy as np
import pyarrow as pa
import pytest

from batchgen.report.lengths import MAX_BINS, Lengths, histogram


def lengths(values: list[int | None]) -> Lengths:
    made = Lengths()
    for start in range(0, len(values), 7):
        made.add(pa.array(values[start : start + 7], pa.int32()))
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 1000])
def test_the_spread(count: int) -> None:
    values = [random.Random(count).randrange(400) for _ in range(count)]
    spread = lengths([*values, None]).spread()
    assert spread is not None
    expected = np.percentile(values, [50, 95], method="inverted_cdf" if count == 1 else "lower")
    assert (spread.median, spread.p95) == tuple(expected)
    assert (spread.count, spread.total) == (count, sum(values))
    assert (spread.minimum, spread.maximum) == (min(values), max(values))


def test_of_nothing() -> None:
    assert lengths([None, None]).spread() is None
    assert histogram({"a": Lengths(), "b": lengths([None])}) is None


SHAPES = {
    "one": [7],
    "zero": [0],
    "equal": [96] * 50,
    "even": list(range(40, 140)),
    "few": [1, 2, 3],
    "cut": [1, 5, 9, *[96] * 40],
    "tail": [*range(1, 40), 4000],
    "zero and tail": [0, 0, 1, 2, 900],
    "largest": [3, 3, 3, 2**31 - 1],
    "wide": [2**bits for bits in range(31)],
    "large and narrow": [2**31 - 3, 2**31 - 1],
}


@pytest.mark.parametrize("values", SHAPES.values(), ids=SHAPES)
def test_every_length_is_in_its_bin(values: list[int]) -> None:
    found = histogram({"all": lengths(list(values)), "none": Lengths()})
    assert found is not None
    bins = list(zip(found.edges, found.edges[1:], strict=False))
    assert all(start < stop for start, stop in bins)
    assert found.series["all"] == tuple(sum(start <= value < stop for value in values) for start, stop in bins)
    assert sum(found.series["all"]) == len(values), "no length is outside of all bins"
    assert found.series["none"] == (0,) * len(bins)
    assert found.series["all"][0], "the first bin holds the shortest"
    assert found.series["all"][-1], "the last bin holds the longest"
    assert len(bins) <= (33 if max(values) > 2**20 else MAX_BINS)


def test_a_long_tail_widens_the_bins_and_nothing_else_does() -> None:
    tail, even = (histogram({"all": lengths(SHAPES[name])}) for name in ("tail", "even"))
    assert tail is not None
    assert even is not None
    assert tail.edges[:6] == (1, 2, 3, 4, 6, 8)
    assert len(set(np.diff(even.edges))) == 1
