"""Groups: how many different answers the n samples of each prompt hold, by their token ids."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from batchgen.io.manifest import Manifest
from batchgen.io.row_batches import row_batches
from batchgen.places import Place

LEAST = 10  # prompts that are named
_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Group:
    """All n samples of a prompt."""

    index: int  # among the rows of the run that are there, counted in prompts
    distinct: int
    most_alike: int  # samples that share the commonest answer


@dataclass(frozen=True, slots=True)
class Diversity:
    """Prompts whose samples are all ok, by the number of different answers."""

    n: int
    distinct: tuple[int, ...]  # prompts with 1, 2, … n different answers
    least: tuple[Group, ...]  # the least diverse first; none that has n different answers
    left_out: int  # prompts with a failed sample


class Groups:
    """Takes the answers in order, as many at a time as there are; holds one group and the least diverse ones."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._distinct = [0] * n
        self._left_out = self._index = 0
        self._waiting: list[bytes | None] = []
        self._least: list[tuple[int, int, Group]] = []  # a heap whose first is the most diverse and latest

    def add(self, answers: Sequence[bytes | None]) -> None:
        """The next answers, as `answer_bytes` gives them."""
        waiting, n = self._waiting + list(answers), self._n
        whole = len(waiting) - len(waiting) % n
        for start in range(0, whole, n):
            self._count(waiting[start : start + n])
        self._waiting = waiting[whole:]

    def result(self) -> Diversity:
        """Of all groups so far."""
        least = sorted((group for _, _, group in self._least), key=lambda group: (group.distinct, group.index))
        return Diversity(self._n, tuple(self._distinct), tuple(least), self._left_out)

    def _count(self, answers: list[bytes | None]) -> None:
        index, self._index = self._index, self._index + 1
        if None in answers:
            self._left_out += 1
            return
        distinct = len(set(answers))
        self._distinct[distinct - 1] += 1
        if distinct == self._n or (len(self._least) == LEAST and distinct >= -self._least[0][0]):
            return
        group = Group(index, distinct, max(Counter(answers).values()))
        heapq.heappush(self._least, (-distinct, -index, group))
        if len(self._least) > LEAST:
            heapq.heappop(self._least)


def diversity_of(run: Place, manifest: Manifest) -> Diversity | None:
    """Of the rows of `run` that are there; None for n = 1. Reads one column of every file.

    Raises RunError when a file is gone or torn.
    """
    if manifest.plan.n == 1:
        return None
    groups = Groups(manifest.plan.n)
    for shard in manifest.shards:
        for batch in row_batches(run, shard, _BATCH_ROWS, ["token_ids"]):
            groups.add(answer_bytes(batch["token_ids"].combine_chunks()))
    return groups.result()


def in_a_line(found: Diversity) -> str:
    """How different the answers are, and how many prompts got one answer alone: no trainer learns from those."""
    prompts, n = sum(found.distinct), found.n
    if not prompts:
        return f"no prompt has {n} answers"
    mean = sum(count * number for number, count in enumerate(found.distinct, 1)) / prompts
    alike = found.distinct[0]
    whole = f"{mean:.2f}".rstrip("0").rstrip(".")
    of_one = f"{alike:,} of {prompts:,} prompts got one answer {n} times" if alike else "no prompt got one answer alone"
    return f"{whole} of {n} answers to a prompt differ; {of_one}"


def answer_bytes(token_ids: pa.Array) -> list[bytes | None]:
    """Each answer's ids as bytes; None where there is no answer. `token_ids`: list<int32>."""
    ids = token_ids.values
    buffer = ids.buffers()[1]
    data = bytes(0) if buffer is None else memoryview(buffer)[4 * ids.offset :]
    ends = [4 * offset for offset in token_ids.offsets.to_pylist()]
    valid = token_ids.is_valid().to_pylist()
    return [
        bytes(data[start:stop]) if there else None for start, stop, there in zip(ends, ends[1:], valid, strict=False)
    ]
