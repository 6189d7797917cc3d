"""One engine in this process: opens the run folder, goes on from what is there, and leaves it finished."""

from collections.abc import Callable

import pyarrow as pa

from batchgen.executor.base import Engine, Job, Progress, run_shards
from batchgen.executor.garbage import seldom_searched
from batchgen.executor.host import host
from batchgen.executor.open_run import open_run, trusted_shards
from batchgen.executor.open_shards import OpenShard, OpenShards
from batchgen.executor.probes import ProbeFailed, Probes
from batchgen.executor.reuse import Reuse
from batchgen.executor.run_book import JobReport, RunBook, finish, report
from batchgen.executor.run_config import RunConfig
from batchgen.executor.stoppable import stoppable
from batchgen.executor.work import Made
from batchgen.io.events import EventLog
from batchgen.io.hashing import MerkleTree
from batchgen.io.run_folder import RunFolder
from batchgen.io.schema import Row
from batchgen.plan import Shard
from batchgen.records import Request


def run_local(
    job: Job, engine: Engine, config: RunConfig, on_progress: Callable[[Progress], None] = lambda _: None
) -> JobReport:
    """Make every row of `job` that is not there yet, in the folder `config.out`.

    What is there is trusted when it is this job's and every hash holds; the rest is made again. Raises RunError
    (another job's folder, cannot write), Interrupted (SIGINT or SIGTERM), VerifyError (a probe whose two answers
    differ, or a finished run whose rows could not be made again as they were), and what inputs and engine raise. After
    any of them the folder is valid, and the same call goes on from there.
    """
    with RunFolder.open(config.out) as folder, stoppable(folder):
        plan, schema = open_run(folder, job, engine, config)
        tree = MerkleTree()
        trusted = trusted_shards(folder, plan, tree)
        missing = [shard for shard in plan.shards if shard.index not in trusted]
        resumed = plan.num_samples - sum(shard.num_rows for shard in missing) * plan.n
        progress = Progress(samples=plan.num_samples, done=resumed, resumed=resumed)
        on_progress(progress)
        if missing or folder.started.root is None:
            with EventLog.open(folder.path) as events:
                book = RunBook(job, engine, config, folder, tree, events, progress)
                book.start(host())
                reuse = Reuse.open(config.reuse, job.spec, job.fingerprint(engine), folder)
                _make(book, engine, missing, schema, reuse, on_progress)
                book.finish()
        else:
            finish(folder, tree.root(plan.num_samples))
        return report(folder, progress)


def _make(
    book: RunBook,
    engine: Engine,
    missing: list[Shard],
    schema: pa.Schema,
    reuse: Reuse,
    on_progress: Callable[[Progress], None],
) -> None:
    """Make the shards that are missing."""
    job, config, progress = book.job, book.config, book.progress

    def on_row(row: Row) -> None:
        progress.count(row)
        on_progress(progress)

    def on_probe(request: Request) -> None:
        book.log_probe((request.row_key, request.sample_index))

    def commit(complete: OpenShard) -> None:
        book.commit(Made.of(complete, job.params, schema), "local")

    plan = book.folder.started.plan
    window = 8 * config.most_at_once + 2 * plan.rows_per_shard * plan.n
    probes = Probes(config.probe, config.most_at_once, on_probe)
    try:
        with seldom_searched():
            run_shards(job, missing, engine, OpenShards(job.params, window, probes, on_row), commit, reuse)
    except ProbeFailed as failed:
        sample = failed.request.row_key, failed.request.sample_index
        raise book.differs(failed.message, failed.hint, sample, failed.evidence) from failed
