"""Twins: near the end a replica without work makes a shard that another one has, and both must be equal."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from batchgen.errors import RunError, VerifyError
from batchgen.executor.compare import bits, differences
from batchgen.executor.members import Member
from batchgen.executor.reuse import completion_of
from batchgen.executor.run_book import RunBook
from batchgen.executor.work import Made
from batchgen.io.hashing import leaves
from batchgen.plan import Shard
from batchgen.row_sampling import with_own


class Twins:
    """Which shards have two makers, and what the first that was ready has made.

    That one is committed at once. If the other comes too it is compared, row by row and bit by bit.
    """

    def __init__(self, book: RunBook) -> None:
        self._book = book
        self._open: dict[int, Shard] = {}  # that replicas have, the oldest first
        self._begun: set[int] = set()  # of those that have a twin
        self.done: set[int] = set()  # shards that are committed
        self._first: dict[int, tuple[str, pa.Table]] = {}  # who made it, and what, while the other is awaited
        self.equal = 0  # shards that were made twice

    def begun(self, shard: Shard) -> None:
        """A replica was given it, and no other has it."""
        self._open[shard.index] = shard

    def next(self) -> Shard | None:
        """The shard that has been with a replica for longest, and has no twin; None when all have."""
        found = next((shard for index, shard in self._open.items() if index not in self._begun), None)
        if found:
            self._begun.add(found.index)
        return found

    def committed(self, maker: str, made: Made, members: Iterable[Member]) -> None:
        """`made` is the first to be ready."""
        index = made.shard.index
        self.done.add(index)
        del self._open[index]
        if any(index in member.shards for member in members):
            self._first[index] = maker, made.table

    def is_missing(self, shard: Shard, members: Iterable[Member]) -> bool:
        """Whether it is neither committed nor with one of these; then it may have a twin again."""
        self._begun.discard(shard.index)
        if shard.index in self.done or any(shard.index in member.shards for member in members):
            return False
        del self._open[shard.index]
        return True

    def is_second(self, maker: str, made: Made) -> bool:
        """Whether the shard is committed already; then `made` is equal to that.

        Raises VerifyError when it is not: then it is no longer in the run, and the evidence is kept.
        """
        index = made.shard.index
        if index not in self.done:
            return False
        first, table = self._first.pop(index)
        pairs = zip(leaves(table), leaves(made.table), strict=True)
        if found := [at for at, (one, other) in enumerate(pairs) if one != other]:
            rows = [each.slice(found[0], 1).to_pylist()[0] for each in (table, made.table)]
            raise self._differ(made.shard.index, (first, maker), rows, len(found))
        self.equal += 1
        self._book.events.write("twins", shard=index, replicas=[first, maker], exact=True)
        return True

    def _differ(
        self, shard: int, replicas: tuple[str, str], rows: Sequence[Mapping[str, Any]], count: int
    ) -> VerifyError:
        """`rows`: the first that differs, of both. The evidence has the form of a probe's."""
        first, second = map(completion_of, rows)
        found = differences(first, second)
        name = first.row_key, first.sample_index
        evidence = {
            "row_key": name[0],
            "sample_index": name[1],
            "differences": [asdict(difference) for difference in found],
            "seed": str(rows[0]["seed"]),
            "prompt_token_ids": rows[0]["prompt_token_ids"] or [],
            "params": asdict(with_own(self._book.job.params, rows[0].get("sampling"))),
            "first": bits(first),
            "second": bits(second),
            "shard": shard,
            "rows_that_differ": count,
            "replicas": list(replicas),
        }
        self._remove(shard)
        what = found[0] if found else "columns of its input"
        return self._book.differs(
            f"shard {shard} was made by the replicas {replicas[0]} and {replicas[1]}, and {count} of its rows differ, "
            f"the first of them row {name[0]!r} sample {name[1]}: {what}",
            "no row of at least one of their machines can be trusted until the cause is known. The shard is not kept; "
            "the same command makes it again",
            name,
            evidence,
        )

    def _remove(self, shard: int) -> None:
        folder = self._book.folder
        with suppress(RunError):  # that the two differ says more
            folder.keep({there.index for there in folder.started.shards} - {shard})
