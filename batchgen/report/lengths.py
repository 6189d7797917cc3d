"""Lengths in tokens: exact counts, collected over batches, and the bins of their histogram."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

MAX_BINS = 24
_LONG_TAIL = 8  # a longest that is more than this many medians calls for bins that widen


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some lengths, at least one."""

    count: int
    total: int
    minimum: int
    median: int
    p95: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bin i holds the lengths edges[i] .. edges[i+1]-1; `series` has one count for each bin under each name."""

    edges: tuple[int, ...]
    series: Mapping[str, tuple[int, ...]]


class Lengths:
    """How often each length occurs. Grows with the number of different lengths alone."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, column: pa.ChunkedArray) -> None:
        """Lengths as integers; nulls are none."""
        for entry in pc.value_counts(column.drop_null()):
            self.counts[entry["values"].as_py()] += entry["counts"].as_py()

    def spread(self) -> Spread | None:
        """None of no length."""
        if not self.counts:
            return None
        lengths = sorted(self.counts)
        below = list(accumulate(self.counts[length] for length in lengths))
        median, p95 = (lengths[bisect_right(below, share * (below[-1] - 1) // 100)] for share in (50, 95))
        total = sum(length * count for length, count in self.counts.items())
        return Spread(below[-1], total, lengths[0], median, p95, lengths[-1])


def histogram(series: Mapping[str, Lengths]) -> Histogram | None:
    """All series over the same bins. None where no series holds a length."""
    together = Lengths()
    for lengths in series.values():
        together.counts += lengths.counts
    spread = together.spread()
    if spread is None:
        return None
    edges = _edges(spread)
    return Histogram(edges, {name: _binned(lengths.counts, edges) for name, lengths in series.items()})


def _edges(spread: Spread) -> tuple[int, ...]:
    """Even steps; where most lengths would fall into the first few of those, steps that grow with the length."""
    if spread.maximum > _LONG_TAIL * max(1, spread.median):
        edges = _growing(spread, halves=True)
        return edges if len(edges) <= MAX_BINS + 1 else _growing(spread, halves=False)
    step = next(step for step in _round_numbers() if spread.maximum // step - spread.minimum // step < MAX_BINS)
    return tuple(range(spread.minimum // step * step, (spread.maximum // step + 1) * step + 1, step))


def _growing(spread: Spread, *, halves: bool) -> tuple[int, ...]:
    """0, 1, 2, 4, 8, …, with 3, 6, 12, … between them if `halves`, as far as the lengths reach."""
    powers = [1 << bits for bits in range(spread.maximum.bit_length() + 1)]
    between = [power // 2 * 3 for power in powers[1:]] if halves else []
    edges = sorted([0, *powers, *between])
    return tuple(edges[bisect_right(edges, spread.minimum) - 1 : bisect_right(edges, spread.maximum) + 1])


def _round_numbers() -> Iterator[int]:
    """1, 2, 5, 10, 20, …"""
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _binned(counts: Mapping[int, int], edges: tuple[int, ...]) -> tuple[int, ...]:
    bins = [0] * (len(edges) - 1)
    for length, count in counts.items():
        bins[bisect_right(edges, length) - 1] += count
    return tuple(bins)
