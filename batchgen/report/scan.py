"""One pass over the row files of a run: everything that is counted, and the rows that are shown.

Reads columns in batches and keeps counts, so memory does not grow with the run. Recomputes no hash.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchgen.errors import RunError
from batchgen.io.manifest import Manifest, ShardRecord, Tally, part_name
from batchgen.io.row_batches import row_batches
from batchgen.places import Place
from batchgen.report.groups import Diversity, Groups, answer_bytes
from batchgen.report.lengths import Lengths

NUM_FAILED = 50
_BATCH_ROWS = 1024
_COUNTED = ("status", "finish_reason", "num_prompt_tokens", "num_output_tokens")
_FAILURE = ("row_key", "sample_index", "error_code", "error_message")
_SHOWN = (
    *_COUNTED,
    *_FAILURE,
    "seed",
    "prompt_token_ids",
    "text",
    "stop_reason",
    "row_hash",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A row with status "error"."""

    row_key: str
    sample_index: int
    error_code: str
    error_message: str


@dataclass(slots=True)
class ErrorCode:
    """How many rows failed in one way, and the first of them."""

    count: int
    first: Failure


class Scan:
    """What the rows of a run hold. Made by `scan`."""

    def __init__(self, n: int) -> None:
        self.tally = Tally()
        self.prompts = Lengths()  # one of each input row
        self.stopped = Lengths()  # of the answers that ended by themselves
        self.cut = Lengths()  # of those that reached max_tokens
        self.errors: dict[str, ErrorCode] = {}
        self.failed: list[Failure] = []  # the first ones
        self._n = n
        self._groups = Groups(n) if n > 1 else None

    @property
    def diversity(self) -> Diversity | None:
        return self._groups.result() if self._groups else None

    def add(self, batch: pa.Table) -> None:
        """Rows that follow those before, with the columns of `columns`."""
        first = -self.tally.rows % self._n  # of the next input row
        self.prompts.add(batch["num_prompt_tokens"][first :: self._n])
        self.tally += Tally.of(batch)
        for reason, lengths in (("stop", self.stopped), ("length", self.cut)):
            lengths.add(batch["num_output_tokens"].filter(pc.equal(batch["finish_reason"], reason)))
        if self._groups:
            self._groups.add(answer_bytes(batch["token_ids"].combine_chunks()))
        self._add_errors(batch.filter(pc.equal(batch["status"], "error")).select(list(_FAILURE)))

    def columns(self) -> list[str]:
        """What `add` reads."""
        return [*_COUNTED, *_FAILURE, *(["token_ids"] if self._groups else [])]

    def _add_errors(self, failed: pa.Table) -> None:
        for entry in pc.value_counts(failed["error_code"]).to_pylist():
            code, count = entry["values"], entry["counts"]
            if code not in self.errors:
                at = pc.index(failed["error_code"], code).as_py()
                self.errors[code] = ErrorCode(0, Failure(**failed.slice(at, 1).to_pylist()[0]))
            self.errors[code].count += count
        room = NUM_FAILED - len(self.failed)
        self.failed += [Failure(**row) for row in failed.slice(0, room).to_pylist()]


def scan(run: Place, manifest: Manifest) -> Scan:
    """Read all rows that the manifest names. Raises RunError when a file is gone, torn, or holds other counts."""
    found = Scan(manifest.plan.n)
    for shard in manifest.shards:
        before = found.tally
        for batch in row_batches(run, shard, _BATCH_ROWS, found.columns()):
            found.add(batch)
        if found.tally != before + shard.tally:
            raise RunError(
                "does not hold the rows that the manifest counts",
                where=str(run / part_name(shard.index)),
                hint=f"batchgen verify {run} says what is wrong",
            )
    return found


def rows_at(run: Place, manifest: Manifest, positions: Collection[int]) -> dict[int, dict[str, Any]]:
    """The rows at these positions among those that are there, as Python values of the columns that are shown."""
    rows: dict[int, dict[str, Any]] = {}
    first = 0
    for shard in manifest.shards:
        wanted = sorted(position - first for position in positions if first <= position < first + shard.tally.rows)
        rows |= {first + at: row for at, row in _pick(run, shard, wanted)}
        first += shard.tally.rows
    return rows


def _pick(run: Place, shard: ShardRecord, wanted: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a shard at positions that ascend."""
    at = 0
    for batch in row_batches(run, shard, _BATCH_ROWS, _SHOWN) if wanted else ():
        while wanted[0] < at + batch.num_rows:
            yield wanted[0], batch.slice(wanted.pop(0) - at, 1).to_pylist()[0]
            if not wanted:
                return
        at += batch.num_rows
