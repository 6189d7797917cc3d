"""One engine in this process: opens the run folder, goes on from what is there, and leaves it finished."""

import contextlib
import hashlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import FrameType

import pyarrow as pa

from batchgen.errors import EXIT_ERROR_ROWS, EXIT_OK, Interrupted, VerifyError
from batchgen.executor.base import Engine, Job, Progress, run_shards
from batchgen.executor.run_config import RunConfig
from batchgen.io.canonical import columns_json
from batchgen.io.hashing import ROW_HASH, MerkleTree, params_hash
from batchgen.io.manifest import InputRecord, Manifest, PlanRecord, Tally
from batchgen.io.run_folder import RunFolder
from batchgen.io.same_job import refuse_other_job
from batchgen.io.schema import SCHEMA_VERSION, Row, output_schema, rows_to_table
from batchgen.io.shard_check import check_shard
from batchgen.plan import Plan, Shard, make_plan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobReport:
    """A finished run. Counts are of the whole run; seconds of this process."""

    root: str
    counts: Tally
    resumed: int  # samples that were there already
    seconds: float

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR_ROWS if self.counts.error else EXIT_OK


def run_local(
    job: Job, engine: Engine, config: RunConfig, on_progress: Callable[[Progress], None] = lambda _: None
) -> JobReport:
    """Make every row of `job` that is not there yet, in the folder `config.out`.

    What is there is trusted when it is this job's and every hash holds; the rest is made again. Raises RunError
    (another job's folder, cannot write), Interrupted (SIGINT or SIGTERM), VerifyError (a finished run whose rows could
    not be made again as they were), and what inputs and engine raise. After any of them the folder is valid, and the
    same call goes on from there.
    """
    with RunFolder.open(config.out) as folder, _stoppable(folder):
        plan, schema = _open_run(folder, job, engine, config)
        tree = MerkleTree()
        trusted = _resume(folder, plan, tree)
        shards = [shard for shard in plan.shards if shard.index not in trusted]
        resumed = (plan.num_rows - sum(shard.num_rows for shard in shards)) * plan.n
        progress = Progress(samples=plan.num_samples, done=resumed, resumed=resumed)
        hashed = params_hash(job.params)

        def commit(shard: Shard, samples: list[Row], passthrough: pa.Table) -> None:
            table = rows_to_table(samples, passthrough, hashed, schema)
            folder.commit(range(shard.start, shard.stop), table)
            tree.add(shard.start * plan.n, (bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()))

        def on_row(row: Row) -> None:
            progress.count(row)
            on_progress(progress)

        on_progress(progress)
        window = 8 * config.max_num_seqs + 2 * plan.rows_per_shard * plan.n
        run_shards(job, shards, engine, window, commit, on_row)
        return JobReport(_finish(folder, tree.root(plan.num_samples)), folder.started.counts, resumed, progress.seconds)


def _open_run(folder: RunFolder, job: Job, engine: Engine, config: RunConfig) -> tuple[Plan, pa.Schema]:
    """Start the run, or make sure that the one in the folder is of this job. A run of no row yet gives way to any."""
    there = folder.manifest if folder.manifest and (folder.manifest.shards or folder.manifest.root) else None
    rows_per_shard = there.plan.rows_per_shard if there else config.rows_per_shard
    if config.rows_per_shard not in (None, rows_per_shard):
        _log.info("%s has %d rows per shard, and keeps them", folder.path, rows_per_shard)
    plan = make_plan(job.spec, job.inputs, rows_per_shard)
    fingerprint = job.fingerprint(engine)
    metadata = {f"batchgen.{part}": value for part, value in fingerprint.items()}
    metadata |= {"batchgen.schema_version": str(SCHEMA_VERSION), "batchgen.logprobs_mode": job.spec.logprobs_mode}
    schema = output_schema(job.inputs.passthrough, logprobs=job.params.logprobs, metadata=metadata)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        batchgen_version=version("batchgen"),
        fingerprint=fingerprint,
        spec=job.spec.resolved(),
        job_yaml_sha256=hashlib.sha256(job.job_yaml).hexdigest(),
        inputs=tuple(InputRecord(file.label, file.sha256, file.count) for file in job.inputs.files),
        plan=PlanRecord(plan.num_rows, plan.n, plan.rows_per_shard, plan.digest),
        columns=tuple((name, type_) for name, type_ in columns_json(schema)),
        run_config=config.recorded(),
        engine=engine.about,
    )
    if there is None:
        folder.start(manifest, job.job_yaml)
    else:
        refuse_other_job(folder.path, there, manifest)
        folder.record(manifest.run_config, manifest.engine)
    return plan, schema


def _resume(folder: RunFolder, plan: Plan, tree: MerkleTree) -> set[int]:
    """The shards that are as they were committed, their leaves added to `tree`; all else is put out of the way."""
    manifest = folder.started
    planned = {shard.index: shard for shard in plan.shards}
    trusted: set[int] = set()
    for shard in manifest.shards:
        leaves, wrong = check_shard(folder.path, manifest, shard)
        if wrong:
            _log.warning("%s: %s; its shard is made again", folder.path, wrong[0])
        elif planned.pop(shard.index, None) == Shard(shard.index, shard.start, shard.stop):
            trusted.add(shard.index)
            tree.add(shard.start * plan.n, leaves)
    folder.keep(trusted)
    return trusted


def _finish(folder: RunFolder, root: str) -> str:
    recorded = folder.started.root
    if recorded is None:
        folder.finish(root)
    elif recorded != root:
        raise VerifyError(
            f"the run was finished with root {recorded}, and its rows now have {root}",
            where=str(folder.path),
            hint="a finished run was changed, or made again differently: compare it with a copy",
        )
    return root


@contextlib.contextmanager
def _stoppable(folder: RunFolder) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the block with Interrupted; a second one ends the process at once."""
    signals = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield
    except KeyboardInterrupt as stopped:
        there = folder.manifest
        kept = (
            f"{there.counts.rows} of {there.plan.rows * there.plan.n} samples are kept" if there else "nothing was made"
        )
        hint = "the same command goes on from here"
        raise Interrupted(f"stopped by {stopped}; {kept}", where=str(folder.path), hint=hint) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
