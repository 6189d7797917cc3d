"""What the sampler takes and gives: arrays with one entry a row, and lists of token ids for each row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TOP_LOGPROBS = 20  # places for the best alternatives of one drawn token


@dataclass(frozen=True, slots=True)
class IdLists:
    """A list of token ids for each of R rows, and a value for each id where the list has values.

    start int32 [R + 1]; ids int32 [start[R]], distinct within a row; values [start[R]] or None.
    The ids of row r are ids[start[r] : start[r + 1]].
    """

    start: NDArray[np.int32]
    ids: NDArray[np.int32]
    values: NDArray[Any] | None = None

    @classmethod
    def of(cls, rows: Sequence[Iterable[int]]) -> "IdLists":
        """Ids alone; a row may be an int32 array."""
        if any(isinstance(row, np.ndarray) for row in rows):
            arrays = [row if isinstance(row, np.ndarray) else np.array(list(row), np.int32) for row in rows]
            return cls(np.cumsum([0, *map(len, arrays)], dtype=np.int32), np.concatenate(arrays))
        lists = [list(row) for row in rows]
        start = np.cumsum([0, *map(len, lists)], dtype=np.int32)
        return cls(start, np.array([i for ids in lists for i in ids], np.int32))

    @classmethod
    def with_values(cls, rows: Sequence[dict[int, Any]], dtype: type[np.float32] | type[np.int32]) -> "IdLists":
        """Ids and a value of `dtype` for each."""
        lists = cls.of(rows)
        return cls(lists.start, lists.ids, np.array([v for row in rows for v in row.values()], dtype))

    def of_row(self, r: int) -> slice:
        return slice(int(self.start[r]), int(self.start[r + 1]))


@dataclass(frozen=True, slots=True)
class Kept:
    """What top-k, top-p and min-p left of the vocabulary in each of R rows, to draw from.

    start int64 [R + 1]: row r has the room from start[r] to start[r + 1] of ids, int32. size int32 [R]: how many were
    left, -1 where nothing is filtered. Ids are in no order; a row whose size exceeds its room has none.
    """

    start: NDArray[np.int64]
    ids: NDArray[np.int32]
    size: NDArray[np.int32]

    @classmethod
    def empty(cls, room: Sequence[int]) -> "Kept":
        """With room for so many ids of each row."""
        start = np.cumsum([0, *room], dtype=np.int64)
        return cls(start, np.zeros(start[-1], np.int32), np.full(len(room), -1, np.int32))

    def set_row(self, r: int, ids: NDArray[np.int64]) -> None:
        self.size[r] = len(ids)
        if len(ids) <= self.start[r + 1] - self.start[r]:
            self.ids[self.start[r] :][: len(ids)] = ids

    def of_row(self, r: int) -> tuple[int, ...] | None:
        """Ids ascending; None where nothing was filtered, () where the room did not suffice."""
        size, room = int(self.size[r]), self.start[r + 1] - self.start[r]
        if size < 0:
            return None
        return tuple(np.sort(self.ids[self.start[r] :][:size]).tolist()) if size <= room else ()


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows of one sampling step; arrays of length R. Ranges are those of records.SamplingParams."""

    seed: NDArray[np.uint64]  # of the sample
    position: NDArray[np.int64]  # absolute, of the token to draw; >= 0
    temperature: NDArray[np.float32]  # 0: argmax
    top_p: NDArray[np.float64]  # 1: off
    min_p: NDArray[np.float32]  # 0: off
    top_k: NDArray[np.int32]  # <= 0: off
    presence_penalty: NDArray[np.float32]
    frequency_penalty: NDArray[np.float32]
    repetition_penalty: NDArray[np.float32]
    bias: IdLists  # values float32, added
    banned: IdLists  # cannot be drawn
    output: IdLists  # tokens drawn so far; values int32, how often
    seen: IdLists  # tokens of prompt and output
    top_logprobs: NDArray[np.int32]  # how many alternatives to list, 0 .. 20; -1: no logprob at all
    kept: Kept | None = None  # is written: what the filters of each row left; None: nobody asks

    def __len__(self) -> int:
        return len(self.seed)


@dataclass(frozen=True, slots=True)
class Draws:
    """The sampler's answer, in the order of the rows.

    Where `finite` is 0 (a logit of the row is NaN or infinite, or every token is banned) nothing was drawn:
    token -1. `logprob` is NaN where none was asked for; unused places of `top_ids` hold -1, of `top_values` -infinity.
    """

    token: NDArray[np.int32]  # [R]
    logprob: NDArray[np.float32]  # [R]
    top_ids: NDArray[np.int32]  # [R, 20]
    top_values: NDArray[np.float32]  # [R, 20]
    finite: NDArray[np.uint8]  # [R]

    @classmethod
    def empty(cls, R: int) -> "Draws":
        return cls(
            np.full(R, -1, np.int32),
            np.full(R, np.nan, np.float32),
            np.full((R, MAX_TOP_LOGPROBS), -1, np.int32),
            np.full((R, MAX_TOP_LOGPROBS), -np.inf, np.float32),
            np.zeros(R, np.uint8),
        )
