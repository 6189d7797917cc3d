"""Rewards of samples, which a run does not hold: a Parquet file of row_key, sample_index and reward."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import InputError

_COLUMNS = ("row_key", "sample_index", "reward")


@dataclass(frozen=True, slots=True)
class Rewards:
    """A finite number for each sample."""

    path: Path
    of: dict[tuple[str, int], float]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises InputError for a file that cannot be read, lacks a column, names a sample twice, or has no number."""
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"cannot be read: {str(error).splitlines()[0]}", where=str(path)) from None
        if lacking := [name for name in _COLUMNS if name not in table.column_names]:
            hint = "it has one row a sample: row_key, sample_index, reward"
            raise InputError(f"lacks the column {lacking[0]}", where=str(path), hint=hint)
        kind = table.schema.field("reward").type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
            raise InputError(f"the column reward holds {kind}, and no numbers", where=str(path))
        found: dict[tuple[str, int], float] = {}
        rewards = table["reward"].cast(pa.float64()).to_pylist()
        for row_key, index, reward in zip(*(table[name].to_pylist() for name in _COLUMNS[:2]), rewards, strict=True):
            what = f"{row_key!r}, sample {index}"
            if (row_key, index) in found:
                raise InputError(f"has two rewards for {what}", where=str(path))
            if reward is None or not math.isfinite(reward):
                raise InputError(f"the reward of {what} is {reward!r}, and no finite number", where=str(path))
            found[row_key, index] = reward
        return cls(path, found)

    def take(self, row_key: str, sample_index: int) -> float:
        """The reward of a sample. Raises InputError if there is none."""
        try:
            return self.of[row_key, sample_index]
        except KeyError:
            raise InputError(f"has no reward for {row_key!r}, sample {sample_index}", where=str(self.path)) from None
