"""What a chaos run has done, counted and printed."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

WAYS: dict[str, str] = {
    "kill": "SIGKILL at a random instant",
    "before": "SIGKILL right before a random file operation",
    "inside": "SIGKILL within a random write, half of it done",
    "interrupt": "SIGINT at a random instant",
    "terminate": "SIGTERM at a random instant",
    "twice": "two signals, one after the other",
    "enospc": "ENOSPC from a random write on, half of it done",
    "limit": "no file may grow past a random size",
    "full": "the disk is full (a small tmpfs)",
}


@dataclass
class Tally:
    """Counts of one engine's campaigns. Faults are not counted: the first ends everything."""

    engine: str
    stopped: Counter[str] = field(default_factory=Counter)  # way -> the child was stopped by it
    ended: Counter[str] = field(default_factory=Counter)  # way -> the child had finished before
    planted: Counter[str] = field(default_factory=Counter)  # damage -> done to a folder
    seen: Counter[str] = field(default_factory=Counter)  # damage -> it changed a row or file that counts
    refused: int = 0  # runs whose manifest was spoilt, and which were refused
    rivals: int = 0  # second processes on one run
    finished: int = 0  # runs that ended by themselves: same root, every row once
    runs: int = 0  # folders
    samples: int = 0  # of one run
    seconds: float = 0.0

    @property
    def stops(self) -> int:
        return self.stopped.total()

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "stops": self.stops,
            "runs": self.runs,
            "finished_with_the_same_root": self.finished,
            "samples_of_a_run": self.samples,
            "lost_rows": 0,
            "doubled_rows": 0,
            "ways": {way: {"stopped": self.stopped[way], "finished_before": self.ended[way]} for way in WAYS},
            "damage": {name: {"done": self.planted[name], "seen": self.seen[name]} for name in sorted(self.planted)},
            "refused_manifests": self.refused,
            "rivals": self.rivals,
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        lines = [f"{self.engine} engine: {self.stops} stops of {self.runs} runs of {self.samples} samples"]
        lines += [f"  {'stopped by':52} {'stopped':>8} {'too late':>9}"]
        lines += [
            f"  {what:52} {self.stopped[way]:8} {self.ended[way]:9}"
            for way, what in WAYS.items()
            if self.stopped[way] + self.ended[way]
        ]
        lines += [f"  {'damage between two processes':52} {'done':>8} {'seen':>9}"]
        lines += [f"  {name:52} {count:8} {self.seen[name]:9}" for name, count in sorted(self.planted.items())]
        lines += [
            f"  spoilt manifests refused: {self.refused}; second processes on one run: {self.rivals}",
            f"  finished {self.finished} times, each with the same root; lost rows 0, doubled rows 0; "
            f"{self.seconds:.0f} s",
        ]
        return "\n".join(lines)
