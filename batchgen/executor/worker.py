"""What a replica does with shards: its rows are asked of its engine, and go out as tables."""

from collections.abc import Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Condition

import pyarrow as pa

from batchgen.executor.base import Engine, Job, ask_row
from batchgen.executor.open_shards import OpenShards
from batchgen.executor.probes import Probes
from batchgen.executor.reuse import ReusedRow
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Failure, Made, News, Told, Work
from batchgen.io.schema import Row
from batchgen.records import Request


class Mailbox:
    """News for the driver. One thread puts it in and another takes it out."""

    def __init__(self) -> None:
        self._news = News(Told())
        self._changed = Condition()
        self._is_new = False

    def tell(self, told: Told) -> None:
        """How far it is. Nobody is woken for that."""
        with self._changed:
            self._news = replace(self._news, told=told)

    def put(self, news: News) -> None:
        """Add what has happened; `told` is not looked at."""
        with self._changed:
            now, self._is_new = self._news, True
            self._news = News(
                now.told,
                (*now.made, *news.made),
                (*now.proven, *news.proven),
                (*now.deaths, *news.deaths),
                now.failure or news.failure,
            )
            self._changed.notify()

    def take(self, seconds: float) -> News:
        """All news, when there is some that matters or after so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_new, seconds)
            news, self._news, self._is_new = self._news, News(self._news.told), False
            return news


class Worker:
    """Makes the shards that it is given, several at a time: the engine never waits for one to end."""

    def __init__(self, job: Job, engine: Engine, config: RunConfig, news: Mailbox) -> None:
        """Of `job` the input is not read. `engine` takes None for a request: there is none now."""
        self._job, self._engine, self._news = job, engine, news
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        self._schemas: dict[int, pa.Schema] = {}
        self._told = Told()
        probes = Probes(config.probe, config.most_at_once, self._on_probe)
        self._held = OpenShards(job.params, 0, probes, self._on_row)

    def give(self, work: Work | None) -> None:
        """Another shard; None ends it as soon as all that was asked is answered. May be called from any thread."""
        self._works.put(work)

    def run(self) -> None:
        """Until it is told to end, or something fails: then that is the last news."""
        try:
            for completion in self._engine.generate(self._requests()):  # type: ignore[arg-type]  # None: see __init__
                self._held.answer(completion)
                self._hand_out()
            self._held.check_answered()
        except BaseException as error:
            self._news.put(News(self._told, failure=Failure.of(error)))

    def _requests(self) -> Iterator[Request | None]:
        while True:
            yield from self._held.probes.due()
            try:
                work = self._works.get_nowait()
            except Empty:
                if not self._held.is_idle:
                    yield None
                    continue
                if rest := list(self._held.probes.rest()):
                    yield from rest
                    continue
                work = self._works.get()
            if work is None:
                return
            yield from self._requests_of(work)

    def _requests_of(self, work: Work) -> Iterator[Request]:
        self._schemas[work.shard.index] = work.schema
        self._held.open(work.shard, work.passthrough)
        for offset, (row, known) in enumerate(zip(work.rows, work.known, strict=True)):
            yield from self._held.probes.due()
            place = work.shard.index, offset * self._job.params.n
            for request in ask_row(self._job, row, known, self._held, place):
                yield self._held.take(request)
        self._hand_out()

    def _hand_out(self) -> None:
        for complete in self._held.take_complete():
            made = Made.of(complete, self._job.params, self._schemas.pop(complete.shard.index))
            self._news.put(News(self._told, made=(made,)))

    def _on_row(self, row: Row) -> None:
        told, completion = self._told, row.completion
        if isinstance(row, ReusedRow) and not row.is_scored:
            self._told = replace(told, reused=told.reused + 1)
        else:
            self._told = Told(
                told.samples + 1,
                told.errors + (completion.finish_reason == "error"),
                told.prompt_tokens + len(row.prompt_token_ids or ()),
                told.output_tokens + len(completion.token_ids),
                told.reused,
                told.scored + isinstance(row, ReusedRow),
            )
        self._news.tell(self._told)

    def _on_probe(self, request: Request) -> None:
        self._news.put(News(self._told, proven=((request.row_key, request.sample_index),)))
