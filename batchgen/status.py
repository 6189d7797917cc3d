"""How far a run is, from its folder alone, while another process works on it or none does."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from batchgen.io.events import read_events
from batchgen.io.held import is_held
from batchgen.io.manifest import Manifest, read_manifest
from batchgen.places import Place

State = Literal["finished", "running", "stopped", "quiet"]

WINDOW = 600.0  # seconds before the latest commit over which rates are taken


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What one replica has made since the process that drives it began; counts are of committed shards."""

    name: str
    shards: int
    samples: int
    errors: int
    output_tokens: int
    tokens_per_second: float | None  # over the window
    since_commit: float | None  # seconds
    is_gone: bool = False  # lost; another has its place
    deaths: int = 0  # of its processes, which it has started again


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment. Counts are the manifest's: committed, and of all processes that worked on the run.

    Rates and seconds are of the latest process, from its events; None where these do not tell. `quiet` is a run that
    is not finished, on which no process here is at work, and whose last one said no word of its end: it was killed,
    or works on another machine.
    """

    state: State
    reason: str | None  # why the latest process stopped
    samples: int
    done: int
    errors: int
    shards: int
    shards_done: int
    prompt_tokens: int
    output_tokens: int
    probes: int
    failed_probes: int
    twins: int  # shards that two replicas made, equal bit for bit
    processes: int  # that have worked on it
    root: str | None
    seconds: float | None  # at work
    since_event: float | None  # seconds since anything was heard of it
    since_commit: float | None
    tokens_per_second: float | None
    samples_per_second: float | None
    seconds_left: float | None
    replicas: tuple[ReplicaStatus, ...]  # by name
    troubles: tuple[str, ...]  # replicas that died, were lost or refused, in words, the latest last


@dataclass(frozen=True, slots=True)
class _Commit:
    at: datetime
    replica: str
    seconds: float  # since its process began to make rows
    samples: int
    errors: int
    output_tokens: int


@dataclass(slots=True)
class _Heard:
    """What events tell: of the latest process, and how many there were."""

    processes: int = 0
    failed_probes: int = 0
    twins: int = 0
    began: datetime | None = None
    last: datetime | None = None
    end: str = ""
    reason: str | None = None
    commits: list[_Commit] = field(default_factory=list)
    joined: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    deaths: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)


def read_status(run: Place, now: datetime | None = None) -> Status:
    """The state of the run at `run`. `now` is for tests. Raises RunError: no run, or one that cannot be read."""
    held = is_held(run)  # before the rest is read: whoever lets go of a run has written all of it
    manifest = read_manifest(run)
    return status_of(manifest, read_events(run), held, now or datetime.now(UTC))


def status_of(manifest: Manifest, events: Iterable[Mapping[str, Any]], held: bool, now: datetime) -> Status:
    """Of a manifest and its events; one that lacks a field is left out, for events are notes."""
    heard = _Heard()
    for event in events:
        try:
            _hear(heard, event)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    tokens, samples = _rates(heard.commits)
    counts, plan = manifest.counts, manifest.plan
    finished = manifest.finished
    return Status(
        state="finished" if finished else "running" if held else "stopped" if heard.end == "stop" else "quiet",
        reason=None if finished or held else heard.reason,
        samples=plan.num_samples,
        done=counts.rows,
        errors=counts.error,
        shards=plan.num_shards,
        shards_done=len(manifest.shards),
        prompt_tokens=counts.prompt_tokens,
        output_tokens=counts.output_tokens,
        probes=manifest.probes,
        failed_probes=heard.failed_probes,
        twins=heard.twins,
        processes=heard.processes,
        root=manifest.root,
        seconds=_at_work(heard, now if held else heard.last),
        since_event=_seconds(heard.last, now),
        since_commit=_seconds(heard.commits[-1].at, now) if heard.commits else None,
        tokens_per_second=tokens,
        samples_per_second=samples,
        seconds_left=(plan.num_samples - counts.rows) / samples if samples and not finished else None,
        replicas=_replicas(heard, now),
        troubles=tuple(heard.troubles),
    )


def _hear(heard: _Heard, event: Mapping[str, Any]) -> None:
    at, kind = datetime.fromisoformat(event["at"]), event["event"]
    match kind:
        case "start":
            heard.processes += 1
            heard.began, heard.end, heard.reason = at, "", None
            for of_one_process in (heard.commits, heard.joined, heard.gone, heard.deaths, heard.troubles):
                of_one_process.clear()
        case "commit":
            counts = (int(event[name]) for name in ("samples", "errors", "output_tokens"))
            heard.commits.append(_Commit(at, str(event["replica"]), float(event["seconds"]), *counts))
        case "probe":
            heard.failed_probes += not event["exact"]
        case "twins":
            heard.twins += bool(event["exact"])
        case "join":
            heard.joined.add(str(event["replica"]))
        case "death" | "lost" | "refuse":
            _hear_trouble(heard, kind, str(event["replica"]), str(event["reason"]))
        case "stop" | "finish":
            heard.end, heard.reason = kind, event.get("reason")
    heard.last = at


def _hear_trouble(heard: _Heard, kind: str, replica: str, reason: str) -> None:
    what = {"death": "a process died and was started again", "lost": "lost and replaced", "refuse": "gets no work"}
    heard.troubles.append(f"{replica}: {what[kind]}: {reason}")
    if kind == "death":
        heard.deaths[replica] += 1
    elif kind == "lost":
        heard.gone.add(replica)


def _rates(commits: Sequence[_Commit]) -> tuple[float | None, float | None]:
    """(output tokens, samples) a second over the window that ends with the latest commit."""
    last = max((commit.seconds for commit in commits), default=0.0)
    begin = max(0.0, last - WINDOW)
    if last <= begin:
        return None, None
    recent = [commit for commit in commits if commit.seconds > begin]
    width = last - begin
    return sum(c.output_tokens for c in recent) / width, sum(c.samples for c in recent) / width


def _replicas(heard: _Heard, now: datetime) -> tuple[ReplicaStatus, ...]:
    by_name: dict[str, list[_Commit]] = {name: [] for name in heard.joined}
    for commit in heard.commits:
        by_name.setdefault(commit.replica, []).append(commit)
    return tuple(
        ReplicaStatus(
            name=name,
            shards=len(commits),
            samples=sum(commit.samples for commit in commits),
            errors=sum(commit.errors for commit in commits),
            output_tokens=sum(commit.output_tokens for commit in commits),
            tokens_per_second=_rates(commits)[0],
            since_commit=_seconds(commits[-1].at, now) if commits else None,
            is_gone=name in heard.gone,
            deaths=heard.deaths[name],
        )
        for name, commits in sorted(by_name.items())
    )


def _at_work(heard: _Heard, until: datetime | None) -> float | None:
    return None if heard.began is None else _seconds(heard.began, until or heard.began)


def _seconds(since: datetime | None, until: datetime | None) -> float | None:
    """Clocks of machines differ; no time is less than nothing."""
    return None if since is None or until is None else max(0.0, (until - since).total_seconds())
