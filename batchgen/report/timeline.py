"""The timeline of a run, from its events: when it worked, when it was stopped, how fast each replica was."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MAX_STEPS = 60  # of one replica
NUM_SLOWEST = 10


@dataclass(frozen=True, slots=True)
class _Commit:
    replica: str
    seconds: float
    samples: int
    output_tokens: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "_Commit":
        return cls(
            str(event["replica"]), _seconds(event["seconds"]), _count(event["samples"]), _count(event["output_tokens"])
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What a replica committed in a while; seconds since its process began to make rows."""

    start: float
    stop: float
    samples: int
    output_tokens: int

    @property
    def seconds(self) -> float:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class SlowRow:
    """A row that took long, from its first step to its last."""

    row_key: str
    sample_index: int
    seconds: float
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """One process at work: `pause` seconds after the one before it, for `seconds`."""

    pause: float
    seconds: float
    steps: Mapping[str, tuple[Step, ...]]  # by replica
    samples: int
    output_tokens: int
    end: str  # "finish", "stop", or "killed" where nothing tells
    reason: str = ""  # of a stop


@dataclass(frozen=True, slots=True)
class Timeline:
    """All stretches of a run, and what else only events tell."""

    stretches: tuple[Stretch, ...]
    slowest: tuple[SlowRow, ...]
    failed_probes: tuple[tuple[str, int], ...]  # row_key, sample_index
    starts: tuple[Mapping[str, Any], ...]  # the start events as they are
    unreadable: int  # events

    @property
    def seconds(self) -> float:
        """At work."""
        return sum(stretch.seconds for stretch in self.stretches)

    @property
    def paused(self) -> float:
        return sum(stretch.pause for stretch in self.stretches)


class _Open:
    """A stretch while its events are read."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.start = start
        self.at = self.last = _moment(start)
        self.commits: list[_Commit] = []
        self.end, self.reason = "killed", ""

    @property
    def seconds(self) -> float:
        """At work. Clocks of machines jump; no time is less than nothing."""
        return max([(self.last - self.at).total_seconds(), 0.0, *(commit.seconds for commit in self.commits)])


def read_timeline(events: Iterable[Mapping[str, Any]]) -> Timeline | None:
    """None where no event tells of a start: an older run, or one that was copied without its events.

    Events are notes, not part of what a run is: one that lacks a field is counted as unreadable and left out.
    """
    opened: list[_Open] = []
    slow: list[SlowRow] = []
    failed: list[tuple[str, int]] = []
    unreadable = 0
    for event in events:
        try:
            if event["event"] == "start":
                opened.append(_Open(event))
            elif opened:
                _add(event, opened[-1], slow, failed)
        except (KeyError, TypeError, ValueError, OverflowError):
            unreadable += 1
    if not opened:
        return None
    shortest = sum(stretch.seconds for stretch in opened) / MAX_STEPS
    stretches = tuple(
        _closed(stretch, before, shortest) for stretch, before in zip(opened, [None, *opened], strict=False)
    )
    return Timeline(stretches, tuple(slow), tuple(failed), tuple(stretch.start for stretch in opened), unreadable)


def _add(event: Mapping[str, Any], now: _Open, slow: list[SlowRow], failed: list[tuple[str, int]]) -> None:
    at = _moment(event)
    match event["event"]:
        case "commit":
            rows = [SlowRow(str(key), _count(index), _seconds(s), _count(n)) for key, index, s, n in event["slowest"]]
            now.commits.append(_Commit.of(event))
            slow += rows
            slow.sort(key=lambda row: -row.seconds)
            del slow[NUM_SLOWEST:]
        case "probe":
            if not event["exact"]:
                failed.append((str(event["row_key"]), _count(event["sample_index"])))
        case "stop" | "finish":
            now.end, now.reason = event["event"], str(event.get("reason", ""))
    now.last = at


def _seconds(value: Any) -> float:
    """Raises ValueError for what no clock shows."""
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError(value)
    return seconds


def _count(value: Any) -> int:
    """Raises ValueError for what nobody has counted."""
    count = int(value)
    if not 0 <= count < 1 << 53:
        raise ValueError(value)
    return count


def _moment(event: Mapping[str, Any]) -> datetime:
    """Raises ValueError for a time without a zone, too."""
    moment = datetime.fromisoformat(event["at"])
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


def _closed(stretch: _Open, before: _Open | None, shortest: float) -> Stretch:
    pause = 0.0 if before is None else max(0.0, (stretch.at - before.last).total_seconds())
    replicas: dict[str, list[_Commit]] = {}
    for commit in stretch.commits:
        replicas.setdefault(commit.replica, []).append(commit)
    return Stretch(
        pause=pause,
        seconds=stretch.seconds,
        steps={name: _steps(replicas[name], shortest) for name in sorted(replicas)},
        samples=sum(commit.samples for commit in stretch.commits),
        output_tokens=sum(commit.output_tokens for commit in stretch.commits),
        end=stretch.end,
        reason=stretch.reason,
    )


def _steps(commits: Sequence[_Commit], shortest: float) -> tuple[Step, ...]:
    """Commits that follow each other closely count as one step: shards that waited for a slow row end all at once.

    A step has at least two thirds of the seconds between two commits on average, and at least `shortest` seconds.
    """
    shortest = max(shortest, max(commit.seconds for commit in commits) / (1.5 * len(commits)))
    steps: list[Step] = []
    start, samples, tokens = 0.0, 0, 0
    for commit in sorted(commits, key=lambda commit: commit.seconds):
        samples += commit.samples
        tokens += commit.output_tokens
        if commit.seconds - start >= shortest:
            steps.append(Step(start, commit.seconds, samples, tokens))
            start, samples, tokens = commit.seconds, 0, 0
    if samples:
        stop = max(commit.seconds for commit in commits)
        last = steps.pop() if steps else Step(0.0, 0.0, 0, 0)
        steps.append(Step(last.start, stop, last.samples + samples, last.output_tokens + tokens))
    return tuple(steps)
