"""The timeline: totals stay exact however commits are gathered into steps, and odd events end nothing."""

import random
from itertools import pairwise
from typing import Any

import pytest
from support.report_events import commit, event, timeline

from batchgen.report.timeline import MAX_STEPS, NUM_SLOWEST, read_timeline


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_steps_hold_every_commit_once(count: int) -> None:
    chance = random.Random(count)
    moments = sorted(chance.uniform(0, 500) for _ in range(count))
    commits = [commit(0, at, chance.choice("ab"), chance.randrange(1, 50)) for at in moments]
    [stretch] = timeline([event(0, "start"), *commits, event(510, "finish")]).stretches
    steps = [step for steps in stretch.steps.values() for step in steps]
    assert sum(step.samples for step in steps) == sum(each["samples"] for each in commits) == stretch.samples
    assert sum(step.output_tokens for step in steps) == stretch.output_tokens
    assert stretch.seconds == 510
    for own in stretch.steps.values():
        assert len(own) <= MAX_STEPS
        assert own[0].start == 0
        assert all(left.stop == right.start for left, right in pairwise(own))
        assert all(step.seconds > 0 for step in own)


def test_a_burst_is_no_peak() -> None:
    """Shards that waited for one slow row are committed within a millisecond."""
    commits = [commit(0, at) for at in (10, 20, 29.999, 30, 30.001, 40)]
    [stretch] = timeline([event(0, "start"), *commits]).stretches
    rates = [step.samples / step.seconds for step in stretch.steps["local"]]
    assert max(rates) < 3 * min(rates)


def test_pauses_and_how_a_process_ended() -> None:
    events = [event(0, "start"), commit(0, 5), event(6, "stop", reason="SIGINT")]
    events += [event(100, "start"), commit(100, 2)]  # killed
    events += [event(50, "start"), commit(50, 3), event(54, "finish")]  # a clock that went back
    found = timeline(events)
    assert [(s.pause, s.seconds, s.end, s.reason) for s in found.stretches] == [
        (0, 6, "stop", "SIGINT"),
        (94, 2, "killed", ""),
        (0, 4, "finish", ""),
    ]
    assert (found.seconds, found.paused) == (12, 94)


def test_the_slowest_of_all_commits() -> None:
    rows: list[list[Any]] = [[f"row-{i}", 0, float(i % 17), i] for i in range(60)]
    commits = [commit(0, i + 1, slowest=rows[3 * i : 3 * i + 3]) for i in range(20)]
    found = timeline([event(0, "start"), *commits]).slowest
    assert [row.seconds for row in found] == sorted((row[2] for row in rows), reverse=True)[:NUM_SLOWEST]
    assert found[0].row_key == "row-16"


def test_failed_probes() -> None:
    probes = [event(1, "probe", row_key="a", sample_index=1, exact=exact) for exact in (True, False)]
    assert timeline([event(0, "start"), *probes]).failed_probes == (("a", 1),)


def test_without_a_start_there_is_no_timeline() -> None:
    assert read_timeline([]) is None
    assert read_timeline([commit(0, 1), event(2, "finish")]) is None


def test_a_process_that_committed_nothing() -> None:
    [stretch] = timeline([event(0, "start")]).stretches
    assert (stretch.seconds, stretch.steps, stretch.samples) == (0, {}, 0)


ODD: list[dict[str, Any]] = [
    {},
    {"event": "start"},
    {"event": "start", "at": "yesterday"},
    {"event": "start", "at": 7},
    {"event": "start", "at": "2026-01-01T00:00:00"},
    event(1, "commit"),
    commit(0, 1) | {"samples": "many"},
    commit(0, 1) | {"output_tokens": 10**400},
    commit(0, 1) | {"seconds": 10**400},
    commit(0, 1) | {"slowest": [[1, 2]]},
    commit(0, 1) | {"slowest": [["a", 0, float("nan"), 3]]},
    commit(0, 1) | {"seconds": None},
    commit(0, 1) | {"seconds": -1},
    commit(0, 1) | {"seconds": float("inf")},
    event(1, "probe"),
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_an_event_that_cannot_be_read_is_counted(odd: dict[str, Any]) -> None:
    found = timeline([event(0, "start"), odd, commit(0, 1), event(2, "something new", x=1)])
    assert found.unreadable == 1
    assert [stretch.samples for stretch in found.stretches] == [8]
