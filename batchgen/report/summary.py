"""The numbers of a report, as plain data: what the manifest, the rows and the events of a run say."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchgen.io.events import read_events
from batchgen.io.manifest import InputRecord, Manifest, Tally, read_manifest
from batchgen.io.row_rules import job_of
from batchgen.io.run_folder import evidence_files
from batchgen.places import Place
from batchgen.report.groups import Diversity
from batchgen.report.lengths import Histogram, Lengths, Spread, histogram
from batchgen.report.scan import ErrorCode, Failure, Scan, rows_at, scan
from batchgen.report.timeline import Timeline, read_timeline
from batchgen.verify.diff import Diff, diff_runs

NUM_SAMPLES = 20
NUM_DIFFERING = 6

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """None and None where nothing has a length."""

    spread: Spread | None
    histogram: Histogram | None

    @classmethod
    def of(cls, **series: Lengths) -> "LengthSummary":
        together = Lengths()
        for lengths in series.values():
            together.counts += lengths.counts
        return cls(together.spread(), histogram(series))


@dataclass(frozen=True, slots=True)
class Sample:
    """A row that is shown. `prompt` is None where it cannot be decoded."""

    row: Mapping[str, Any]
    prompt: str | None


@dataclass(frozen=True, slots=True)
class LeastDiverse:
    """A prompt by its first sample, and how many different answers it got."""

    row_key: str
    text: str
    distinct: int
    most_alike: int


@dataclass(frozen=True, slots=True)
class Identity:
    """All that the rows are a function of, and how they were made."""

    batchgen_version: str
    fingerprint: Mapping[str, str]
    inputs: tuple[InputRecord, ...]
    plan_digest: str
    rows_per_shard: int
    run_config: Mapping[str, Any]
    engine: Mapping[str, Any]
    hosts: tuple[Mapping[str, Any], ...]  # of each process that made rows, in order; empty without events
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers. Samples that are not made yet are in no count."""

    name: str  # of the job
    folder: str  # the last part of the run's path
    root: str | None
    finished: bool
    planned: int  # samples
    prompts: int  # input rows of the plan
    n: int
    max_tokens: int | None  # None: rows say it themselves
    greedy: bool  # all rows
    tally: Tally
    probes: int  # of the rows that are there; all were exact, or their shard were not
    evidence: int  # files that tell of probes that were not
    errors: Mapping[str, ErrorCode]  # by code, the most frequent first
    failed: tuple[Failure, ...]
    prompt_lengths: LengthSummary
    output_lengths: LengthSummary  # series "stop" and "length", by finish reason
    diversity: Diversity | None  # None for n = 1
    least_diverse: tuple[LeastDiverse, ...]
    timeline: Timeline | None  # None without events
    samples: tuple[Sample, ...]
    identity: Identity
    diff: Diff | None  # against another run, which is its B

    @property
    def cut_at(self) -> str:
        """What the longest answers were cut at."""
        return "max_tokens" if self.max_tokens is None else f"max_tokens = {self.max_tokens:,}"


def summarise(run: Place, decode: Decode | None = None, against: Place | None = None) -> Summary:
    """Read the run at `run`: its manifest, its events, and its rows once. Recomputes no hash.

    `decode` turns prompt ids into text. `against` is another run, whose rows are compared with those of this one; that
    checks the hashes of both. Raises RunError when a manifest or a row file cannot be read, or when a file holds other
    counts than the manifest has for it, and what `diff_runs` raises.
    """
    manifest = read_manifest(run)
    job = job_of(manifest)
    timeline = read_timeline(read_events(run))
    found = scan(run, manifest)
    spread = _spread_evenly(found.tally.rows)
    diversity = found.diversity
    least = {group: group.index * manifest.plan.n for group in (diversity.least if diversity else ())}
    rows = rows_at(run, manifest, {*spread, *least.values()})
    return Summary(
        name=job.name,
        folder=run.resolve().name,
        root=manifest.root,
        finished=manifest.finished,
        planned=manifest.plan.num_samples,
        prompts=manifest.plan.rows,
        n=manifest.plan.n,
        max_tokens=None if "max_tokens" in job.own_sampling else job.sampling.max_tokens,
        greedy=job.sampling.temperature == 0 and "temperature" not in job.own_sampling,
        tally=found.tally,
        probes=manifest.probes,
        evidence=len(evidence_files(run)),
        errors=dict(sorted(found.errors.items(), key=lambda item: -item[1].count)),
        failed=tuple(found.failed),
        prompt_lengths=LengthSummary.of(prompts=found.prompts),
        output_lengths=_output_lengths(found),
        diversity=diversity,
        least_diverse=tuple(
            LeastDiverse(rows[at]["row_key"], rows[at]["text"], group.distinct, group.most_alike)
            for group, at in least.items()
        ),
        timeline=timeline,
        samples=tuple(_samples((rows[at] for at in spread), decode)),
        identity=_identity(manifest, timeline),
        diff=diff_runs(run, against, examples=NUM_DIFFERING) if against else None,
    )


def _output_lengths(found: Scan) -> LengthSummary:
    return LengthSummary.of(stop=found.stopped, length=found.cut)


def _spread_evenly(count: int) -> list[int]:
    """Up to NUM_SAMPLES positions below `count`, the first and the last among them."""
    wanted = min(count, NUM_SAMPLES)
    return [index * (count - 1) // max(1, wanted - 1) for index in range(wanted)]


def _samples(rows: Iterable[Mapping[str, Any]], decode: Decode | None) -> Iterable[Sample]:
    for row in rows:
        ids = row["prompt_token_ids"]
        yield Sample(row, None if decode is None or ids is None else decode(ids))


def _identity(manifest: Manifest, timeline: Timeline | None) -> Identity:
    starts = timeline.starts if timeline else ()
    hosts = [start["host"] for start in starts if isinstance(start.get("host"), Mapping)]
    return Identity(
        batchgen_version=manifest.batchgen_version,
        fingerprint=manifest.fingerprint,
        inputs=manifest.inputs,
        plan_digest=manifest.plan.digest,
        rows_per_shard=manifest.plan.rows_per_shard,
        run_config=manifest.run_config,
        engine=manifest.engine,
        hosts=tuple(hosts),
        spec=manifest.spec,
    )
