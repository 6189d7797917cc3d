"""Which shard is made next: those that failed with a replica first, then by the length of their prompts."""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from batchgen.io.reader import Inputs, open_parquet
from batchgen.plan import Plan, Shard

_STEPS = 8  # of weights, between one and its double


class ShardQueue:
    """The shards that no replica has. Long ones first, so that none of them is what all wait for at the end."""

    def __init__(self, shards: Iterable[Shard], weights: NDArray[np.float64]) -> None:
        """`weights` are by the index of a shard; of equal ones the first comes first."""
        ordered = sorted(shards, key=lambda shard: (-weights[shard.index], shard.index))
        self._shards = deque(ordered)

    def __len__(self) -> int:
        return len(self._shards)

    def take(self) -> Shard:
        """The next one; it is no longer in the queue."""
        return self._shards.popleft()

    def put_back(self, shards: Iterable[Shard]) -> None:
        """Those that a lost replica had: they are the oldest, and come first."""
        self._shards.extendleft(reversed(list(shards)))


def prompt_bytes(inputs: Inputs, plan: Plan) -> NDArray[np.float64]:
    """[shards] about how long the prompts of each shard are together, as bytes in Parquet before compression.

    By the metadata of the files alone: the rows of a row group count as equally long. In steps of a tenth, so that
    shards that are much alike are equal, and are made in the order in which they are read: whoever begins in the middle
    of a row group decodes all of it that lies before. Raises InputError.
    """
    ends, sizes, means = [0], [0.0], []  # of all row groups up to here: rows that are taken, bytes; of each: of a row
    for file in inputs.files:
        names = tuple(file.prompt_columns.values())
        with open_parquet(file.path) as parquet:
            metadata, first = parquet.metadata, 0
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                columns = [group.column(at) for at in range(group.num_columns)]
                size = sum(c.total_uncompressed_size for c in columns if _is_of(c.path_in_schema, names))
                taken = _taken(file.rows, file.count, first, first + group.num_rows)
                first += group.num_rows
                if taken:
                    means.append(size / group.num_rows)
                    ends.append(ends[-1] + taken)
                    sizes.append(sizes[-1] + means[-1] * taken)
    bounds = np.array([*(shard.start for shard in plan.shards), plan.num_rows])
    begin, end = np.searchsorted(ends, bounds[:-1], "right") - 1, np.searchsorted(ends, bounds[1:], "left") - 1
    inside = np.diff(bounds) * np.array(means)[begin]  # exactly equal for all shards of a row group
    return _in_steps(np.where(begin == end, inside, np.diff(np.interp(bounds, ends, sizes))))


def _in_steps(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp2(np.round(np.log2(np.maximum(weights, 1.0)) * _STEPS) / _STEPS)


def _taken(rows: NDArray[np.int64] | None, count: int, start: int, stop: int) -> int:
    """How many of the rows start .. stop-1 of a file the job takes."""
    if rows is None:
        return max(0, min(stop, count) - start)
    return int(np.diff(np.searchsorted(rows, [start, stop]))[0])


def _is_of(leaf: str, names: tuple[str, ...]) -> bool:
    """Whether a leaf of the schema, such as messages.list.element.content, belongs to one of these columns."""
    return any(leaf == name or leaf.startswith(f"{name}.") for name in names)
