"""A job file in, a finished run out."""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from batchgen.executor.actor import ReplicaSetup
from batchgen.executor.base import Job, Progress
from batchgen.executor.driver import run_replicas
from batchgen.executor.local import run_local
from batchgen.executor.needs import needs_of
from batchgen.executor.ray import RayFleet, cluster
from batchgen.executor.replica import ending, only_ranks_open_weights, start_replica
from batchgen.executor.reuse import check_runs
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import Weights, cores, open_weights
from batchgen.io.run_folder import RunFolder
from batchgen.loader import LoadedModel, load_job, naming
from batchgen.places import Place
from batchgen.spec import JobSpec, load_spec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the replicas of a RunConfig with the executor `ray` are."""

    address: str | None = None  # HOST:PORT or auto; None: on this machine, for the time of the job
    on_gpu: Mapping[str, int] = field(default_factory=dict)  # fields of the RunConfig where replicas are on GPUs


def run_job(
    path: Place,
    config: RunConfig,
    where: Cluster | None = None,
    *,
    on_fetch: Callable[[int, int | None], None] = lambda done, total: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> JobReport:
    """Make every row of the job file `path` that the folder `config.out` does not hold yet.

    A finished run is verified and left alone. `on_fetch` hears of the bytes of a model that is being fetched, and of
    those in all where that is known. Raises BatchgenError; after one, the folder is valid and the same call goes on.
    """
    config = replace(config, job_dir=path.parent)
    # A bad job file leaves no folder behind, and a bad folder is told before a model is fetched.
    spec = load_spec(path)
    if spec.model.load_format == "dummy":
        _log.warning("the weights are drawn (model.load_format: dummy): the answers are no model's")
    with _leaving_no_empty_folder(config.out):
        RunFolder.open(config.out).close()
        check_runs(config.reuse, config.out)
        if config.executor == "ray":
            return _run_on_ray(path, config, spec.numerics, where or Cluster(), on_fetch, on_progress)
        job, model, weights = _load(path, spec, config.expert_parallel_size, on_fetch)
        engine = start_replica(job.spec, model, config, weights.result())
        with naming(path), ending(engine):
            return run_local(job, engine, config, on_progress)


def _run_on_ray(
    path: Place,
    config: RunConfig,
    numerics: str,
    where: Cluster,
    on_fetch: Callable[[int, int | None], None],
    on_progress: Callable[[Progress], None],
) -> JobReport:
    """Whether there is room is known before the model is fetched."""
    needed = config.replicas * config.expert_parallel_size * (config.threads or 1)
    with cluster(where.address, max(needed, cores())) as nodes:
        needs = needs_of(config, numerics, nodes)
        if (room := needs.room(nodes)) < config.replicas:
            _log.warning("there is room for %d of %d replicas; the others start when there is", room, config.replicas)
        fitting = where.on_gpu if needs.device == "cuda" else {"threads": needs.threads}
        config = replace(config, device=needs.device, **fitting)  # type: ignore[arg-type]
        job, _ = load_job(path, on_fetch)
        base_dir = path.parent.absolute() if isinstance(path, Path) else path.parent
        with naming(path):
            fleet = RayFleet(ReplicaSetup(job.spec, base_dir, config, job.digests["limits"]), needs)
            return run_replicas(job, fleet, config, on_progress)


@contextmanager
def _leaving_no_empty_folder(out: Place) -> Iterator[None]:
    """A block after whose failure a folder that was not there before, and in which nothing is, is gone."""
    is_new = not out.exists()
    try:
        yield
    except BaseException:
        if is_new and isinstance(out, Path):  # a store has no folders
            with suppress(OSError):
                out.rmdir()
        raise


def _load(
    path: Place, spec: JobSpec, size: int, on_fetch: Callable[[int, int | None], None]
) -> tuple[Job, LoadedModel, "Future[Weights | None]"]:
    """The job and its weights, which are read while the tokenizer is built and the input is scanned."""

    def open_here(model: Path) -> Weights | None:
        if only_ranks_open_weights(spec.numerics, size):
            return None
        return open_weights(model, spec.numerics, load_format=spec.model.load_format)

    opened: list[Future[Weights | None]] = []
    beside = ThreadPoolExecutor(1)
    try:
        job, model = load_job(path, on_fetch, lambda found: opened.append(beside.submit(open_here, found)))
    finally:
        beside.shutdown(wait=False)  # an error in the job is told at once, not when all weights are read
    return job, model, opened[0]
