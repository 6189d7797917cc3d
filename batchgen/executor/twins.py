"""Twins: near the end a replica without work makes a shard that another one has, and both must be equal."""

from collections.abc import Iterable

from batchgen.errors import RunError
from batchgen.executor.members import Member
from batchgen.executor.run_book import RunBook
from batchgen.executor.work import Made
from batchgen.io.hashing import ROW_HASH, leaves
from batchgen.plan import Shard


class Twins:
    """Which shards have two makers, and what the first that was ready has made.

    That one is committed at once. If the other comes too it is compared, row by row and bit by bit.
    """

    def __init__(self, book: RunBook) -> None:
        self._book = book
        self._begun: set[int] = set()
        self.done: set[int] = set()  # shards that are committed
        self._first: dict[int, tuple[str, list[bytes]]] = {}  # who made it, and its leaves, while the other is awaited
        self.equal = 0  # shards that were made twice

    def next(self, members: Iterable[Member]) -> Shard | None:
        """The shard that has been with a replica for longest, and has no twin; None when all have."""
        open_shards = (shard for member in members for shard in member.shards.values())
        found = next((s for s in open_shards if s.index not in self._begun | self.done), None)
        if found:
            self._begun.add(found.index)
        return found

    def committed(self, maker: str, made: Made, members: Iterable[Member]) -> None:
        """`made` is the first to be ready."""
        index = made.shard.index
        self.done.add(index)
        if any(index in member.shards for member in members):
            self._first[index] = maker, leaves(made.table)

    def is_missing(self, shard: Shard, members: Iterable[Member]) -> bool:
        """Whether it is neither committed nor with one of these; then it may have a twin again."""
        if shard.index in self.done or any(shard.index in member.shards for member in members):
            self._begun.discard(shard.index)
            return False
        self._begun.discard(shard.index)
        return True

    def is_second(self, maker: str, made: Made) -> bool:
        """Whether the shard is committed already; then `made` is equal to that.

        Raises VerifyError when it is not: then it is no longer in the run, and the evidence is kept.
        """
        index = made.shard.index
        if index not in self.done:
            return False
        first, expected = self._first.pop(index)
        found = leaves(made.table)
        if found != expected:
            raise self._differ(made, (first, expected), (maker, found))
        self.equal += 1
        self._book.events.write("twins", shard=index, replicas=[first, maker], exact=True)
        return True

    def _differ(self, made: Made, first: tuple[str, list[bytes]], second: tuple[str, list[bytes]]) -> Exception:
        pairs = zip(first[1], second[1], strict=True)
        rows = [at for at, (a, b) in enumerate(pairs) if a != b]
        row = made.table.slice(rows[0], 1).to_pylist()[0]
        name = row["row_key"], row["sample_index"]
        evidence = {
            "row_key": name[0],
            "sample_index": name[1],
            "shard": made.shard.index,
            "rows_that_differ": len(rows),
            "replicas": [first[0], second[0]],
            ROW_HASH: [first[1][rows[0]].hex(), second[1][rows[0]].hex()],
            "second": {key: repr(value) for key, value in row.items()},
        }
        folder = self._book.folder
        kept = {shard.index for shard in folder.started.shards} - {made.shard.index}
        try:
            folder.keep(kept)
        except RunError as error:
            evidence["not_removed"] = str(error)
        return self._book.differs(
            f"shard {made.shard.index} was made by replicas {first[0]} and {second[0]}, and {len(rows)} of its rows "
            f"differ, the first of them row {name[0]!r} sample {name[1]}",
            "no row of at least one of these machines can be trusted until the cause is known. The shard is not kept; "
            "the same command makes it again",
            name,
            evidence,
        )
