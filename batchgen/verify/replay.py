"""replay: make rows of a run again, under another RunConfig, and compare every bit."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from batchgen.errors import InputError, RowError
from batchgen.executor.base import Engine, Progress
from batchgen.executor.run_config import RunConfig
from batchgen.io.hashing import ROW_HASH
from batchgen.io.manifest import ShardRecord
from batchgen.io.schema import Row, rows_to_table
from batchgen.places import Place
from batchgen.records import Completion, Request
from batchgen.verify.choice import Rows
from batchgen.verify.integrity import verify_run
from batchgen.verify.ledger import Ledger, edited
from batchgen.verify.mismatch import Mismatch, Scorer, find_mismatch
from batchgen.verify.prompts import Prompt, Prompts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it. Every chosen row is exact, bad, or has a prompt error, unless it was interrupted."""

    chosen: int
    exact: int
    bad: int
    prompt_errors: int  # not made again: why there is no prompt is known from the input alone
    mismatches: tuple[Mismatch, ...]  # of the first bad rows
    output_tokens: int
    seconds: float
    interrupted: bool

    @property
    def compared(self) -> int:
        return self.exact + self.bad

    @property
    def left(self) -> int:
        """Chosen rows that an interruption left alone."""
        return self.chosen - self.compared - self.prompt_errors

    @property
    def ok(self) -> bool:
        return not self.bad and not self.interrupted


def check_files(run: Place, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Raise VerifyError unless all files of the run are as they were committed; an unfinished run is all right.

    `on_progress` hears how many of how many rows were checked.
    """
    verdict = verify_run(run, on_progress=on_progress)
    for finding in verdict.findings:
        if finding.kind != "unfinished":
            raise edited(run, str(finding))


def other_config(run: Place, recorded: Mapping[str, Any], **chosen: Any) -> RunConfig:
    """Differs from the recorded RunConfig in all that must not matter. `chosen`: fields that are given; None is not."""
    then = asdict(RunConfig(run)) | dict(recorded)
    other: dict[str, Any] = {name: _other(then[name]) for name in ("max_num_seqs", "max_num_batched_tokens")}
    other |= {"prefix_cache": not then["prefix_cache"], "kv_cache_bytes": then["kv_cache_bytes"], "probe": 0.0}
    return RunConfig(run, **other | {name: value for name, value in chosen.items() if value is not None})


def _other(limit: int) -> int:
    return limit * 3 // 4 or 2


def replay_rows(
    ledger: Ledger,
    engine: Engine,
    rows: Rows,
    prompts: Prompts,
    limit: int = 10,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Replay:
    """Make `rows` again in their shuffled order, and compare each with what is stored.

    Holds the chosen rows of shards that are being made, and the first `limit` bad rows. KeyboardInterrupt ends it with
    what was compared so far. Raises VerifyError for a shard that changed meanwhile, InputError if no chosen row can be
    made: that nothing differs of nothing is no proof.
    """
    if not len(rows):
        raise InputError("the run has no row yet", where=str(ledger.run), hint="the job's own command makes them")
    progress = Progress(len(rows), 0, 0)
    work = _Work(ledger, prompts, limit, progress)
    scorer, interrupted = None, False
    try:
        with closing(engine.generate(work.requests(rows))) as completions:
            for completion in completions:
                work.answer(completion)
                on_progress(progress)
        scorer = Scorer(ledger) if work.found else None
        mismatches = [find_mismatch(*pair, scorer) for pair in work.found]
        if work.prompt_errors == len(rows):
            what = f"all chosen rows ({len(rows)}) hold prompt errors: nothing was compared"
            raise InputError(what, where=str(ledger.run), hint="--from-input makes them again too")
    except KeyboardInterrupt:
        interrupted = True
        work.compare_all()
        mismatches = [find_mismatch(*pair, None) for pair in work.found]
    return Replay(
        chosen=len(rows),
        exact=work.exact,
        bad=work.bad,
        prompt_errors=work.prompt_errors,
        mismatches=tuple(mismatches),
        output_tokens=progress.output_tokens,
        seconds=progress.seconds,
        interrupted=interrupted,
    )


@dataclass(slots=True)
class _OpenShard:
    """The chosen rows of one shard, as they are stored and as they are made again."""

    stored: pa.Table
    passthrough: pa.Table
    requests: list[Request | None]
    made: list[Row | None]
    missing: int


class _Work:
    """Where a replay is: what was asked, what has come back, what was compared."""

    def __init__(self, ledger: Ledger, prompts: Prompts, limit: int, progress: Progress) -> None:
        self._ledger, self._prompts, self._limit, self._progress = ledger, prompts, limit, progress
        self._open: dict[int, _OpenShard] = {}  # by index
        self._asked: dict[tuple[str, int], tuple[int, int]] = {}  # -> (shard index, place among its chosen rows)
        self.exact = self.bad = self.prompt_errors = 0
        self.found: list[tuple[pa.Table, pa.Table, Request | None]] = []  # bad rows: stored, made, how it was asked

    def requests(self, rows: Rows) -> Iterator[Request]:
        """Opens one shard after the other."""
        shards = {shard.index: shard for shard in self._ledger.manifest.shards}
        for index, shuffled in rows.shuffled():
            yield from self._open_shard(shards[index], shuffled)

    def _open_shard(self, shard: ShardRecord, shuffled: list[int]) -> Iterator[Request]:
        table = self._ledger.table(shard)
        positions = self._prompts.known(table, sorted(shuffled))
        self._skip(len(shuffled) - len(positions))
        if not positions:
            return
        prompts, passthrough = self._prompts.of(shard, table, positions)
        stored = table.take(pa.array(positions, pa.int64()))
        nothing: list[None] = [None] * len(positions)
        self._open[shard.index] = _OpenShard(stored, passthrough, [*nothing], [*nothing], len(positions))
        place_of = {position: place for place, position in enumerate(positions)}
        for position in shuffled:
            if (place := place_of.get(position)) is not None:
                index = position % self._ledger.manifest.plan.n
                yield from self._ask(shard.index, place, prompts[place], index)

    def _skip(self, count: int) -> None:
        self.prompt_errors += count
        self._progress.done += count

    def _ask(self, shard: int, place: int, prompt: Prompt, sample_index: int) -> Iterator[Request]:
        key, name = prompt.row_key, (prompt.row_key, sample_index)
        if isinstance(prompt.ids, RowError):
            error = prompt.ids
            failed = Completion(*name, (), "", "error", error_code=error.code, error_message=str(error))
            self._place(shard, place, Row(self._ledger.seed(*name), None, failed, sampling=prompt.sampling))
            return
        if name in self._asked:
            raise edited(self._ledger.run, f"row {key!r} sample {sample_index} is there twice")
        request = self._ledger.ask(key, sample_index, prompt.ids, prompt.sampling)
        self._open[shard].requests[place] = request
        self._asked[name] = shard, place
        yield request

    def answer(self, completion: Completion) -> None:
        """Take the engine's answer to a request."""
        shard, place = self._asked.pop((completion.row_key, completion.sample_index))
        request = self._open[shard].requests[place]
        assert request is not None
        row = Row(request.seed, request.prompt_token_ids, completion, sampling=request.sampling)
        self._place(shard, place, row)

    def _place(self, shard: int, place: int, row: Row) -> None:
        opened = self._open[shard]
        opened.made[place] = row
        opened.missing -= 1
        self._progress.count(row)
        if not opened.missing:
            self._compare(self._open.pop(shard))

    def compare_all(self) -> None:
        """Compare what was made of shards that are not full."""
        while self._open:
            self._compare(self._open.popitem()[1])

    def _compare(self, opened: _OpenShard) -> None:
        places = [place for place, row in enumerate(opened.made) if row is not None]
        rows = [row for row in opened.made if row is not None]
        keys = [row.completion.row_key for row in rows]
        firsts = [place for at, place in enumerate(places) if at == 0 or keys[at] != keys[at - 1]]
        carried = opened.passthrough
        if carried.num_columns:
            carried = carried.take(pa.array(firsts, pa.int64()))
        made = rows_to_table(rows, carried, self._ledger.params, opened.stored.schema)
        stored = opened.stored.take(pa.array(places, pa.int64()))
        for at, (now, then) in enumerate(zip(made[ROW_HASH].to_pylist(), stored[ROW_HASH].to_pylist(), strict=True)):
            if now == then:
                self.exact += 1
                continue
            if not self.bad:
                name = f"row {keys[at]!r} sample {rows[at].completion.sample_index}"
                _log.warning("%s is not bit-exact; the others are still compared", name)
            self.bad += 1
            if len(self.found) < self._limit:
                self.found.append((stored.slice(at, 1), made.slice(at, 1), opened.requests[places[at]]))
