"""A job file in, a finished run out."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from batchgen.executor.base import Job, Progress
from batchgen.executor.local import JobReport, run_local
from batchgen.executor.replica import ending, only_ranks_open_weights, start_replica
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import Weights, open_weights
from batchgen.io.run_folder import RunFolder
from batchgen.loader import LoadedModel, load_job, naming
from batchgen.places import Place
from batchgen.spec import load_spec


def run_job(
    path: Place,
    config: RunConfig,
    *,
    on_fetch: Callable[[int, int | None], None] = lambda done, total: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> JobReport:
    """Make every row of the job file `path` that the folder `config.out` does not hold yet.

    A finished run is verified and left alone. `on_fetch` hears of the bytes of a model that is being fetched, and of
    those in all where that is known. Raises BatchgenError; after one, the folder is valid and the same call goes on.
    """
    config = replace(config, job_dir=path.parent)
    numerics = load_spec(
        path
    ).numerics  # a bad job file leaves no folder behind, and a bad folder is told before a model is fetched
    is_new = not config.out.exists()
    RunFolder.open(config.out).close()
    try:
        job, model, weights = _load(path, numerics, config.expert_parallel_size, on_fetch)
        engine = start_replica(job.spec, model, config, weights.result())
    except BaseException:
        if is_new and isinstance(config.out, Path):  # a store has no folders
            with suppress(OSError):
                config.out.rmdir()
        raise
    with naming(path), ending(engine):
        return run_local(job, engine, config, on_progress)


def _load(
    path: Place, numerics: str, size: int, on_fetch: Callable[[int, int | None], None]
) -> tuple[Job, LoadedModel, "Future[Weights | None]"]:
    """The job and its weights, which are read while the tokenizer is built and the input is scanned."""

    def open_here(model: Path) -> Weights | None:
        return None if only_ranks_open_weights(numerics, size) else open_weights(model, numerics)

    opened: list[Future[Weights | None]] = []
    beside = ThreadPoolExecutor(1)
    try:
        job, model = load_job(path, on_fetch, lambda found: opened.append(beside.submit(open_here, found)))
    finally:
        beside.shutdown(wait=False)  # an error in the job is told at once, not when all weights are read
    return job, model, opened[0]
