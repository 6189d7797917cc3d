"""A replica in a process of its own, as an object with four methods: whoever drives it calls them, from anywhere."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Thread
from typing import Protocol

import pyarrow as pa

from batchgen.errors import ModelError
from batchgen.executor.base import Engine, Job
from batchgen.executor.guarded import GuardedEngine
from batchgen.executor.host import host
from batchgen.executor.replica import DepEngine
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Failure, News, Started, Told, Work
from batchgen.executor.worker import Mailbox, Worker
from batchgen.io.reader import Inputs
from batchgen.io.row_keys import NO_REPEATS
from batchgen.loader import bad_words_token_ids, limits_json, load_model, own_check, prompt_builder
from batchgen.places import Place
from batchgen.spec import JobSpec


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """What a replica needs to know of its job. Rows come to it, and samples go from it: it reads no input."""

    spec: JobSpec  # whole, also with what a generation config says
    base_dir: Place  # where relative paths of the job begin
    run_config: RunConfig  # of this replica
    limits: str | None = None  # limits_json of the driver's copy of the model; None: not compared


class Opening(Protocol):
    """From a setup to a job and an engine that takes None for a request; it hears of deaths of the engine."""

    def __call__(self, setup: ReplicaSetup, on_death: Callable[[str], None]) -> tuple[Job, Engine]: ...


def open_replica(setup: ReplicaSetup, on_death: Callable[[str], None]) -> tuple[Job, Engine]:
    """Load the model of the job, from this machine's copy of it, and start its ranks.

    Raises ModelError, SpecError and EngineError.
    """
    spec, config = setup.spec, setup.run_config
    model = load_model(spec, setup.base_dir, lambda done, total: None)
    if setup.limits not in (None, here := limits_json(model)):
        raise ModelError(
            f"the limits of the model are {here} here, and {setup.limits} where the driver is",
            where=str(model.path),
            hint="its config or generation config was changed: use the same copy everywhere",
        )
    engine = GuardedEngine(lambda: DepEngine.start(spec, model, config), on_death)
    job = Job(
        spec=spec,
        job_yaml=b"",
        inputs=Inputs((), spec.row_key, pa.schema([]), NO_REPEATS),
        params=spec.sampling,
        build_prompt=prompt_builder(spec, model).build,
        bad_words_token_ids=bad_words_token_ids(spec.sampling, model.tokenizer),
        check_own=own_check(model),
    )
    return job, engine


class Replica:
    """`start`, then `give` and `news` in any order and from any thread."""

    def __init__(self, setup: ReplicaSetup, opening: Opening = open_replica) -> None:
        self._setup, self._opening = setup, opening
        self._news = Mailbox()
        self._worker: Worker | None = None

    def start(self) -> Started | Failure:
        """Start the engine; it takes as long as that takes."""
        try:
            job, engine = self._opening(self._setup, self._on_death)
        except BaseException as error:
            return replace(Failure.of(error), is_loss=True)
        self._worker = Worker(job, engine, self._setup.run_config, self._news)
        Thread(target=self._worker.run, daemon=True).start()
        return Started(engine.fingerprint, engine.about, {**host(), "node": platform.node(), "pid": os.getpid()})

    def give(self, work: Work | None) -> None:
        """Another shard to make; None: it is to end when what is in hand is answered."""
        assert self._worker is not None, "it has not started"
        self._worker.give(work)

    def news(self, seconds: float) -> News:
        """What has happened since the last call; it waits so long at most for something to happen."""
        return self._news.take(seconds)

    def _on_death(self, text: str) -> None:
        self._news.put(News(Told(), deaths=(text,)))
