"""Engines without a model for replicas on a real Ray cluster, which imports them by name."""

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from support.fake_engine import FakeEngine
from support.fake_jobs import build_prompt
from support.fake_rank import MODEL
from support.fake_runner import EOS

from batchgen.executor.actor import ReplicaSetup
from batchgen.executor.base import Engine, Job
from batchgen.executor.guarded import GuardedEngine
from batchgen.executor.replica import DepEngine
from batchgen.executor.run_config import RunConfig
from batchgen.io.reader import InputRow, Inputs
from batchgen.io.row_keys import NO_REPEATS
from batchgen.records import Completion, Request
from batchgen.spec import JobSpec


def open_fake(setup: ReplicaSetup, on_death: Callable[[str], None]) -> tuple[Job, Engine]:
    """Steps take `memory_fraction` seconds, so that there is some time in which a replica can be killed.

    While there is a file `closed` beside the input no engine answers.
    """
    engine = Gated(order=os.getpid(), seconds=setup.run_config.memory_fraction, max_num_seqs=8)
    engine.gate = Path(str(setup.base_dir)) / "closed"
    return job_of(setup.spec, build_prompt), engine


class Gated(FakeEngine):
    gate: Path

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        for completion in super().generate(requests):
            while self.gate.exists():
                time.sleep(0.02)
            yield completion


def open_processes(setup: ReplicaSetup, on_death: Callable[[str], None]) -> tuple[Job, Engine]:
    """A real process around the fake runner, which does what row keys ask for: see support.fake_rank."""
    return job_of(setup.spec, build_short), guarded(setup.spec, on_death)


def guarded(spec: JobSpec, on_death: Callable[[str], None] = lambda text: None) -> GuardedEngine:
    config = RunConfig(Path("unused"), device="cpu", max_num_seqs=4)
    return GuardedEngine(lambda: DepEngine.start(spec, MODEL, config, "support.fake_rank:main"), on_death)


def build_short(row: InputRow) -> Sequence[int]:
    """A few tokens of the fake runner's vocabulary."""
    return [byte % EOS for byte in str(row.prompt).encode()][-9:]


def job_of(spec: JobSpec, build: Callable[[InputRow], Sequence[int]]) -> Job:
    """A job that knows its rows from its driver alone."""
    return Job(spec, b"", Inputs((), spec.row_key, pa.schema([]), NO_REPEATS), spec.sampling, build)
