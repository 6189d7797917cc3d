"""What the scores of all items say together. Sums are exact and rounded once, so the order of the items is not seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

# Student's t at 97.5%, for 1, 2, 3, … degrees of freedom; the normal quantile stands for all that come after.
_T: tuple[float, ...] = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one evaluation: N items with n samples each. Intervals are half of their width, at 95%."""

    items: int
    samples: int  # of each item
    failed: int  # samples without a score, which count as wrong
    score: float  # the mean
    over_items: float | None  # by the spread of the items' means: what other items of the kind might give
    over_seeds: float | None  # by the spread of the means of sample 0, 1, …: what other seeds might give
    by_sample: tuple[float, ...]  # the mean of sample 0, of sample 1, …
    pass_at: dict[str, float]  # k -> how likely one of k samples of an item is right


def summarise(scores: Sequence[Sequence[float | None]], pass_at: Sequence[int] = ()) -> Summary:
    """`scores`: for each item those of its samples, as many for each. Raises ValueError for no item at all."""
    if not scores:
        raise ValueError("there is no item")
    known = [[0.0 if score is None else score for score in item] for item in scores]
    n = len(known[0])
    means = [math.fsum(item) / n for item in known]
    by_sample = [math.fsum(item[s] for item in known) / len(known) for s in range(n)]
    return Summary(
        items=len(known),
        samples=n,
        failed=sum(score is None for item in scores for score in item),
        score=math.fsum(score for item in known for score in item) / (len(known) * n),
        over_items=_half_width(means),
        over_seeds=_half_width(by_sample),
        by_sample=tuple(by_sample),
        pass_at={str(k): _pass_at(known, k) for k in pass_at},
    )


def _half_width(means: Sequence[float]) -> float | None:
    """Of the interval for the mean of `means`; None for a single one."""
    count = len(means)
    if count < 2:
        return None
    mean = math.fsum(means) / count
    variance = math.fsum((value - mean) ** 2 for value in means) / (count - 1)
    quantile = _T[count - 2] if count - 2 < len(_T) else _NORMAL
    return quantile * math.sqrt(variance / count)


def _pass_at(items: Sequence[Sequence[float]], k: int) -> float:
    """The mean over items of 1 - C(n - c, k) / C(n, k), c of n samples being right: the estimate without bias."""
    total = Fraction(0)
    for item in items:
        n, right = len(item), sum(score == 1 for score in item)
        total += 1 - Fraction(math.comb(n - right, k), math.comb(n, k))
    return float(total / len(items))
