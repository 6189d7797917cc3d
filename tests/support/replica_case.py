"""A job on replicas that are threads around fake engines, and what is done to them meanwhile."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.fake_engine import FakeEngine
from support.fake_jobs import make_job
from support.thread_fleet import ThreadFleet

from batchgen.executor.base import Job
from batchgen.executor.driver import run_replicas
from batchgen.executor.fleet import Heard
from batchgen.executor.members import ClusterProgress
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import News
from batchgen.io.events import read_events
from batchgen.io.manifest import read_manifest
from batchgen.places import Place
from batchgen.verify.integrity import verify_run


@dataclass
class Case:
    """A job on replicas, and what came of it."""

    job: Job
    config: RunConfig
    out: Place
    fleet: ThreadFleet
    shown: list[tuple[int, int]]

    def run(self) -> JobReport:
        def on_progress(progress: ClusterProgress) -> None:
            self.shown.append((progress.done, len(progress.replicas)))

        try:
            return run_replicas(self.job, self.fleet, self.config, on_progress)
        finally:
            assert self.fleet.is_closed

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.out) if event["event"] == name]


def case(folder: Path, out: Place, replicas: int, rows_per_shard: int = 4, probe: float = 0.005, **how: Any) -> Case:
    job = make_job(folder)
    config = RunConfig(out, max_num_seqs=8, rows_per_shard=rows_per_shard, replicas=replicas, probe=probe)
    return Case(job, config, out, ThreadFleet(job, config, **how), [])


def check(made: Case, report: JobReport, root: str) -> None:
    """The root of a run that nothing happened to, and every row once."""
    assert report.root == root == read_manifest(made.out).root
    assert verify_run(made.out).ok
    committed = [event["shard"] for event in made.events("commit")]
    assert sorted(committed) == list(range(-(-50 // (made.config.rows_per_shard or 1)))), "every shard once"


def steady(number: int) -> FakeEngine:
    return FakeEngine(order=number, seconds=0.004)


def lose_at(samples: int, *names: str) -> Callable[[ThreadFleet, str, Heard], Heard]:
    """Those replicas are lost as soon as they have told of so many samples."""

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if name in names and isinstance(said, News) and said.told.samples >= samples and name in fleet._alive:
            fleet.lose(name)
            return replace(said, made=())  # what it was about to hand in is lost with it
        return said

    return on_said


def interrupting(shards: int) -> Callable[[ThreadFleet, str, Heard], Heard]:
    """A signal once so many shards were handed in."""
    left = shards

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        nonlocal left
        if isinstance(said, News) and said.made:
            left -= len(said.made)
            if left <= 0 and signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
                signal.raise_signal(signal.SIGINT)
                assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "a second one ends the process"
        return said

    return on_said
