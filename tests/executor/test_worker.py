"""The worker of a replica: shards in, shards out, and the engine is never left without work that is there."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from threading import Thread

import pyarrow.parquet as pq
import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import EngineError
from batchgen.executor.base import Job
from batchgen.executor.open_run import open_run
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Made, News, ShardReader, Told
from batchgen.executor.worker import Mailbox, Worker
from batchgen.io.manifest import part_name
from batchgen.io.run_folder import RunFolder
from batchgen.plan import Plan
from batchgen.records import Completion, Request

CONFIG = RunConfig(Path("unused"), max_num_seqs=8, rows_per_shard=8)
LIMIT = 20.0  # seconds


class Bench:
    """A worker in a thread, over the fake job."""

    def __init__(self, job: Job, out: Path, engine: FakeEngine) -> None:
        self.news = Mailbox()
        self.worker = Worker(job, engine, CONFIG, self.news)
        with RunFolder.open(out) as folder:
            self.plan: Plan
            self.plan, self.schema = open_run(folder, job, engine, CONFIG)
        self.reader = ShardReader(job.inputs, self.schema)
        self.thread = Thread(target=self.worker.run, daemon=True)
        self.thread.start()
        self.heard: list[News] = []

    def give(self, *indices: int) -> None:
        for index in indices:
            self.worker.give(self.reader.read(self.plan.shard(index)))

    def until(self, is_enough: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT
        while not is_enough():
            assert time.monotonic() < limit, "it takes too long"
            self.heard.append(self.news.take(0.05))

    @property
    def made(self) -> list[Made]:
        return [made for news in self.heard for made in news.made]

    def end(self) -> None:
        self.worker.give(None)
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in", 50, bad=[3])


@pytest.fixture
def benches(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    found: list[Bench] = []

    def bench(engine: FakeEngine) -> Bench:
        found.append(Bench(make_job(folder), tmp_path / "out", engine))
        return found[-1]

    yield bench
    for each in found:
        each.worker.give(None)


def test_shards_as_a_run_alone_makes_them(benches: Callable[..., Bench], folder: Path, tmp_path: Path) -> None:
    bench = benches(FakeEngine(order=3))
    bench.give(2, 0, 6)
    bench.until(lambda: len(bench.made) == 3)
    run(make_job(folder), tmp_path / "alone")
    for made in bench.made:
        assert made.table.equals(pq.read_table(tmp_path / "alone" / part_name(made.shard.index)))
    told = bench.heard[-1].told
    assert (told.samples, told.errors) == (16 + 16 + 4, 2)
    bench.end()
    assert bench.news.take(0.0) == News(told)


def test_a_shard_that_comes_later_joins_what_runs(benches: Callable[..., Bench]) -> None:
    """The engine is not left to run dry first."""
    engine = FakeEngine(seconds=0.002)
    bench = benches(engine)
    bench.give(0)
    bench.until(lambda: len(engine.asked) >= 8)
    bench.give(1)
    bench.until(lambda: len(bench.made) == 2)
    bench.give(2)  # after it was idle
    bench.until(lambda: len(bench.made) == 3)
    assert engine.calls == 1, "all in one generation"


def test_probes_of_a_worker(benches: Callable[..., Bench]) -> None:
    bench = benches(FakeEngine())
    bench.give(1)
    bench.until(lambda: len(bench.made) == 1)
    assert bench.made[0].probes == 2
    assert sum(len(news.proven) for news in bench.heard) == 2


def test_an_engine_that_ends_early(benches: Callable[..., Bench]) -> None:
    class Lazy(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            stream = super().generate(requests)
            yield next(stream)

    bench = benches(Lazy())
    bench.give(0)
    bench.until(lambda: bool(bench.heard and bench.heard[-1].failure))
    failure = bench.heard[-1].failure
    assert failure is not None
    assert "completions never came" in failure.error.message
    assert not failure.is_loss


def test_the_mailbox_waits_for_what_matters() -> None:
    box = Mailbox()
    began = time.monotonic()
    box.tell(Told(samples=3))
    assert box.take(0.1) == News(Told(samples=3))
    assert time.monotonic() - began >= 0.1
    box.put(News(Told(), deaths=("one",)))
    box.put(News(Told(), deaths=("two",)))
    began = time.monotonic()
    assert box.take(5.0) == News(Told(samples=3), deaths=("one", "two"))
    assert time.monotonic() - began < 1.0
    assert box.take(0.0) == News(Told(samples=3)), "all news is told once"


def test_a_failing_engine_is_a_loss(benches: Callable[..., Bench]) -> None:
    class Failing(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            raise EngineError("gone")

    bench = benches(Failing())
    bench.until(lambda: bool(bench.heard and bench.heard[-1].failure))
    failure = bench.heard[-1].failure
    assert failure is not None
    assert failure.is_loss
