"""One engine in this process: opens the run folder, goes on from what is there, and leaves it finished."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

import pyarrow as pa

from batchgen.errors import EXIT_ERROR_ROWS, EXIT_OK, RunError, VerifyError
from batchgen.executor.base import Engine, Job, Progress, run_shards
from batchgen.executor.host import host
from batchgen.executor.open_run import open_run, trusted_shards
from batchgen.executor.open_shards import OpenShard, OpenShards
from batchgen.executor.probes import ProbeFailed, Probes
from batchgen.executor.run_config import RunConfig
from batchgen.executor.stoppable import stoppable
from batchgen.io.events import EventLog
from batchgen.io.hashing import ROW_HASH, MerkleTree, params_hash
from batchgen.io.manifest import Tally
from batchgen.io.run_folder import RunFolder
from batchgen.io.schema import Row, rows_to_table
from batchgen.plan import Plan
from batchgen.records import Request

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobReport:
    """A finished run. Counts are of the whole run, whichever processes made it; seconds of this process."""

    root: str
    counts: Tally
    resumed: int  # samples that were there already
    seconds: float
    probes: int = 0  # samples that were made twice, and were equal bit for bit
    failed_probes: int = 0  # that were not, and stopped an earlier process; the evidence is in the folder

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR_ROWS if self.counts.error else EXIT_OK


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
        left = sum(shard.num_rows for shard in plan.shards if shard.index not in trusted) * plan.n
        resumed = plan.num_samples - left
        progress = Progress(samples=plan.num_samples, done=resumed, resumed=resumed)
        on_progress(progress)
        if left or folder.started.root is None:
            with EventLog.open(folder.path) as events:
                making = _Making(job, engine, config, plan, schema, folder, tree, events, progress, on_progress)
                making.start()
                making.make(trusted)
                root = _finish(folder, tree.root(plan.num_samples))
                events.write("finish", root=root, samples=plan.num_samples, seconds=round(progress.seconds, 3))
        else:
            root = _finish(folder, tree.root(plan.num_samples))
        there = folder.started
        return JobReport(root, there.counts, resumed, progress.seconds, there.probes, folder.num_evidence)


@dataclass(frozen=True, slots=True)
class _Making:
    """One process at work on a run: what is made goes to the folder, the tree, the log and the display."""

    job: Job
    engine: Engine
    config: RunConfig
    plan: Plan
    schema: pa.Schema
    folder: RunFolder
    tree: MerkleTree
    events: EventLog
    progress: Progress
    on_progress: Callable[[Progress], None]

    def start(self) -> None:
        self.events.write(
            "start",
            batchgen_version=version("batchgen"),
            run_config=self.config.recorded(),
            engine=self.engine.about,
            host=host(),
            samples=self.progress.samples,
            resumed=self.progress.resumed,
        )

    def make(self, trusted: set[int]) -> None:
        """Make all shards but these."""
        shards = [shard for shard in self.plan.shards if shard.index not in trusted]
        window = 8 * self.config.most_at_once + 2 * self.plan.rows_per_shard * self.plan.n
        probes = Probes(self.config.probe, self.config.most_at_once, self.log_probe)
        try:
            run_shards(
                self.job, shards, self.engine, OpenShards(self.job.params, window, probes, self.on_row), self.commit
            )
        except ProbeFailed as failed:
            where = self.keep_evidence(failed)
            with suppress(RunError):  # the probe says more
                self.log_probe(failed.request, exact=False)
            raise VerifyError(failed.message, where=where, hint=failed.hint) from failed

    def commit(self, complete: OpenShard) -> None:
        shard, samples = complete.shard, complete.rows
        table = rows_to_table(samples, complete.passthrough, params_hash(self.job.params), self.schema)
        self.folder.commit(range(shard.start, shard.stop), table, complete.probes)
        self.tree.add(shard.start * self.plan.n, (bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()))
        tally = Tally.of(table)
        self.events.write(
            "commit",
            shard=shard.index,
            replica="local",
            samples=tally.rows,
            errors=tally.error,
            prompt_tokens=tally.prompt_tokens,
            output_tokens=tally.output_tokens,
            probes=complete.probes,
            seconds=round(self.progress.seconds, 3),
            slowest=[[key, index, round(seconds, 3), tokens] for seconds, key, index, tokens in complete.slowest],
        )

    def on_row(self, row: Row) -> None:
        self.progress.count(row)
        self.on_progress(self.progress)

    def log_probe(self, request: Request, exact: bool = True) -> None:
        self.events.write("probe", row_key=request.row_key, sample_index=request.sample_index, exact=exact)

    def keep_evidence(self, failed: ProbeFailed) -> str:
        """Where it is kept; the run folder when it cannot be."""
        facts = {
            **failed.evidence,
            "batchgen_version": version("batchgen"),
            "fingerprint": self.job.fingerprint(self.engine),
            "run_config": self.config.recorded(),
            "engine": self.engine.about,
        }
        try:
            return str(self.folder.keep_evidence(facts))
        except RunError as error:
            _log.warning("the evidence is lost: %s", error)
            return str(self.folder.path)


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
