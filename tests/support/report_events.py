"""Events of a run, as a log would hold them, and their timeline."""

from datetime import UTC, datetime, timedelta
from typing import Any

from batchgen.report.timeline import Timeline, read_timeline

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def event(after: float, kind: str, **facts: Any) -> dict[str, Any]:
    """So many seconds after START."""
    return {"at": (START + timedelta(seconds=after)).isoformat(), "event": kind, **facts}


def commit(began: float, seconds: float, replica: str = "local", samples: int = 8, slowest: Any = ()) -> dict[str, Any]:
    """By a process that began so many seconds after START, and its own seconds."""
    facts = {"samples": samples, "output_tokens": 10 * samples, "replica": replica, "slowest": slowest}
    return event(began + seconds, "commit", seconds=seconds, **facts)


def timeline(events: list[dict[str, Any]]) -> Timeline:
    """Of events that hold a start."""
    found = read_timeline(events)
    assert found is not None
    return found
