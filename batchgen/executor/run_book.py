"""What is written down while a run is made: its shards, its tree of hashes, its events."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from batchgen.errors import EXIT_ERROR_ROWS, EXIT_OK, RunError, VerifyError
from batchgen.executor.base import Job, Progress, Proven
from batchgen.executor.probes import SampleId
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Made
from batchgen.io.events import EventLog
from batchgen.io.hashing import ROW_HASH, MerkleTree
from batchgen.io.manifest import Tally
from batchgen.io.run_folder import RunFolder

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
    reused: int = 0  # samples that this process took, whole, from earlier runs
    scored: int = 0  # and such whose logprobs it made
    sources: tuple[Mapping[str, Any], ...] = ()  # path, root, and the samples taken by all processes, of each run

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR_ROWS if self.counts.error else EXIT_OK


@dataclass(frozen=True, slots=True)
class RunBook:
    """One process at work on a run: the only one that writes to its folder."""

    job: Job
    engine: Proven
    config: RunConfig
    folder: RunFolder
    tree: MerkleTree
    events: EventLog
    progress: Progress

    def start(self, host: Mapping[str, Any]) -> None:
        """Note how and where it is made."""
        self.events.write(
            "start",
            batchgen_version=version("batchgen"),
            run_config=self.config.recorded(),
            engine=self.engine.about,
            host=host,
            samples=self.progress.samples,
            resumed=self.progress.resumed,
        )

    def commit(self, made: Made, replica: str) -> None:
        """Add a shard to the run. Raises RunError when it cannot be written."""
        shard, table, told = made.shard, made.table, made.told
        self.folder.commit(range(shard.start, shard.stop), table, made.probes, made.reused)
        self.tree.add(shard.start * self.job.params.n, (bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()))
        self.events.write(
            "commit",
            shard=shard.index,
            replica=replica,
            samples=told.samples,
            errors=told.errors,
            prompt_tokens=told.prompt_tokens,
            output_tokens=told.output_tokens,
            **({"reused": told.reused} if told.reused else {}),
            probes=made.probes,
            seconds=round(self.progress.seconds, 3),
            slowest=[[key, index, round(seconds, 3), tokens] for seconds, key, index, tokens in made.slowest],
        )

    def log_probe(self, sample: SampleId, exact: bool = True) -> None:
        self.events.write("probe", row_key=sample[0], sample_index=sample[1], exact=exact)

    def differs(self, message: str, hint: str, sample: SampleId, evidence: Mapping[str, Any]) -> VerifyError:
        """The error for a sample that was made twice and differs, after what is known of it was kept."""
        where = self._keep(evidence)
        with suppress(RunError):  # the error says more
            self.log_probe(sample, exact=False)
        return VerifyError(message, where=where, hint=hint)

    def finish(self) -> None:
        """All rows are there."""
        root = finish(self.folder, self.tree.root(self.progress.samples))
        seconds = round(self.progress.seconds, 3)
        self.events.write("finish", root=root, samples=self.progress.samples, seconds=seconds)

    def _keep(self, evidence: Mapping[str, Any]) -> str:
        """Where it is kept; the run folder when it cannot be."""
        facts = {
            **evidence,
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


def finish(folder: RunFolder, root: str) -> str:
    """Note the root of a run whose rows are all there; it is returned. Raises VerifyError when another was noted."""
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


def report(folder: RunFolder, progress: Progress) -> JobReport:
    """Of a finished run."""
    there = folder.started
    assert there.root is not None
    return JobReport(
        there.root,
        there.counts,
        progress.resumed,
        progress.seconds,
        there.probes,
        folder.num_evidence,
        progress.reused,
        progress.scored,
        tuple({**asdict(run), "samples": samples} for run, samples in there.reused),
    )
