"""One sample of a run, on its way to a trainer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Sample(NamedTuple):
    """One row of a run that is ok, and what is known of it beside the row."""

    row_key: str
    sample_index: int
    group: int  # which input row, counted from 0
    prompt: Sequence[int]
    answer: Sequence[int]
    logprobs: Sequence[float]
    text: str
    finish_reason: str  # "stop" or "length"
    reward: float | None
    carried: Mapping[str, Any]  # passthrough columns
    kept: Sequence[Sequence[int]] | None = None  # ids that the filters left at each draw
    experts: NDArray[Any] | None = None  # uint8 or uint16 [tokens - 1, layers, k]
