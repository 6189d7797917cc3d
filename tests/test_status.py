"""How far a run is, from its manifest and its events."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, run, write_input
from support.report_events import START, event

from batchgen.errors import EngineError, RunError
from batchgen.io.manifest import Manifest, Tally, read_manifest
from batchgen.status import WINDOW, Status, read_status, status_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("status")
    run(make_job(write_input(folder, 40, bad=[3])), folder / "run")
    return folder / "run"


@pytest.fixture
def half(finished: Path) -> Manifest:
    """48 of 80 samples."""
    manifest = read_manifest(finished)
    return replace(manifest.with_shards(manifest.shards[:3]), root=None)


def commit(after: float, replica: str = "a", samples: int = 10, tokens: int = 100, **facts: Any) -> dict[str, Any]:
    counts = {"samples": samples, "errors": 1, "output_tokens": tokens, "seconds": after}
    return event(after, "commit", replica=replica, **counts, **facts)


def at(after: float) -> datetime:
    return START + timedelta(seconds=after)


def status(manifest: Manifest, *events: dict[str, Any], now: float = 100.0, held: bool = True) -> Status:
    return status_of(manifest, events, held, at(now))


def test_a_finished_run(finished: Path) -> None:
    manifest, found = read_manifest(finished), read_status(finished)
    assert (found.state, found.done, found.samples, found.errors) == ("finished", 80, 80, 2)
    assert (found.shards_done, found.shards, found.root) == (5, 5, manifest.root)
    assert (found.output_tokens, found.probes) == (manifest.counts.output_tokens, manifest.probes)
    [replica] = found.replicas
    assert (replica.name, replica.shards, replica.samples, replica.errors) == ("local", 5, 80, 2)
    assert replica.output_tokens == manifest.counts.output_tokens
    assert (found.seconds_left, found.failed_probes, found.processes) == (None, 0, 1)


def test_rates_are_of_what_was_committed_until_the_latest_commit(half: Manifest) -> None:
    found = status(half, event(0, "start"), commit(10), commit(40, tokens=300), now=1000)
    assert (found.tokens_per_second, found.samples_per_second) == (10.0, 0.5)
    assert found.seconds_left == (80 - 48) / 0.5
    assert (found.seconds, found.since_commit, found.since_event) == (1000, 960, 960)


def test_rates_forget_what_is_long_ago(half: Manifest) -> None:
    early = [commit(second, tokens=10_000) for second in range(1, 100)]
    late = [commit(1000 + WINDOW, tokens=int(WINDOW)), commit(1000, tokens=10_000)]
    found = status(half, event(0, "start"), *early, *late)
    assert found.tokens_per_second == 1.0  # the commit at 1000 s is the last of before


def test_each_replica_has_its_own_rate(half: Manifest) -> None:
    events = [commit(10, "b"), commit(20, "a", tokens=50), commit(50, "b", samples=7), commit(60, "c")]
    found = status(half, event(0, "start"), *events, now=70)
    assert [(r.name, r.shards, r.samples, r.tokens_per_second, r.since_commit) for r in found.replicas] == [
        ("a", 1, 10, 2.5, 50),
        ("b", 2, 17, 4.0, 20),
        ("c", 1, 10, pytest.approx(100 / 60), 10),
    ]


def test_only_the_latest_process_counts_for_rates(half: Manifest) -> None:
    before = [event(0, "start"), commit(10, "old", tokens=10**6), event(11, "stop", reason="SIGTERM")]
    found = status(half, *before, event(50, "start"), event(60, "commit", **facts_of(commit(10, "new"))), now=70)
    assert [replica.name for replica in found.replicas] == ["new"]
    assert (found.processes, found.tokens_per_second, found.seconds, found.reason) == (2, 10.0, 20, None)


def facts_of(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("at", "event")}


@pytest.mark.parametrize(
    ("held", "end", "state", "reason"),
    [
        (True, [], "running", None),
        (False, [], "quiet", None),
        (False, [event(9, "stop", reason="SIGTERM")], "stopped", "SIGTERM"),
        (True, [event(9, "stop", reason="SIGTERM")], "running", None),  # it is on its way out, or the next one in
        (False, [event(9, "stop", reason="SIGTERM"), event(10, "start")], "quiet", None),
    ],
)
def test_states(half: Manifest, held: bool, end: list[dict[str, Any]], state: str, reason: str | None) -> None:
    found = status(half, event(0, "start"), *end, held=held)
    assert (found.state, found.reason) == (state, reason)


def test_a_run_of_which_nothing_is_known_yet(half: Manifest) -> None:
    empty = replace(half, shards=(), counts=Tally())
    for events in ([], [event(0, "start")]):
        found = status(empty, *events)
        assert (found.done, found.tokens_per_second, found.seconds_left, found.replicas) == (0, None, None, ())


def test_probes_that_differed_and_twins_that_did_not(half: Manifest) -> None:
    probes = [event(1, "probe", exact=True), event(2, "probe", exact=False)]
    twins = [event(3, "twin", shard=1, replica="b"), event(4, "twins", shard=1, replicas=["a", "b"], exact=True)]
    found = status(half, event(0, "start"), *probes, *twins)
    assert (found.failed_probes, found.twins, found.troubles) == (1, 1, ())


def test_replicas_that_join_die_and_are_lost(half: Manifest) -> None:
    joined = [event(1, "join", replica=name, host={}, engine={}) for name in ("a", "b", "c")]
    refused = event(2, "refuse", replica="d", reason="its canary is another", host={})
    died = event(3, "death", replica="a", reason="SIGSEGV")
    lost = event(4, "lost", replica="b", reason="its node is gone", shards=[3])
    found = status(half, event(0, "start"), *joined, refused, died, commit(9, "b"), lost)
    assert [(r.name, r.shards, r.deaths, r.is_gone, r.since_commit) for r in found.replicas] == [
        ("a", 0, 1, False, None),
        ("b", 1, 0, True, 91),
        ("c", 0, 0, False, None),
    ]
    assert found.troubles == (
        "d: gets no work: its canary is another",
        "a: a process died and was started again: SIGSEGV",
        "b: lost and replaced: its node is gone",
    )
    assert status(half, *joined, lost, event(50, "start")).replicas == ()


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"at": 3, "event": "start"},
        {"at": "yesterday", "event": "start"},
        {"at": START.isoformat()},
        event(5, "commit", replica="a"),
        event(5, "commit", **(facts_of(commit(5)) | {"seconds": "x"})),
        event(5, "probe"),
        event(5, "lost", replica="a"),
    ],
)
def test_odd_events_spoil_nothing(half: Manifest, odd: dict[str, Any]) -> None:
    found = status(half, event(0, "start"), odd, commit(10), now=10)
    assert found.processes == 1
    assert [(replica.shards, replica.since_commit) for replica in found.replicas] == [(1, 0)]


def test_clocks_that_go_back_give_no_negative_times(half: Manifest) -> None:
    found = status(half, event(50, "start"), commit(10), now=0)
    assert (found.seconds, found.since_commit, found.since_event) == (0, 0, 0)


def test_a_run_that_stopped_on_an_error_says_why(tmp_path: Path) -> None:
    class Failing(FakeEngine):
        def generate(self, requests: Any) -> Any:
            for number, completion in enumerate(super().generate(requests)):
                if number == 70:
                    raise EngineError("out of memory")
                yield completion

    with pytest.raises(EngineError):
        run(make_job(write_input(tmp_path)), tmp_path / "run", Failing())
    found = read_status(tmp_path / "run")
    assert (found.state, found.reason) == ("stopped", "out of memory")
    assert 0 < found.done < found.samples


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        read_status(tmp_path)
