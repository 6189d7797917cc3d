"""A job on several replicas: the same root whoever makes what, and what becomes of replicas that fail."""

import json
import signal
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FINGERPRINT, FakeEngine
from support.fake_jobs import make_job, read_rows, run, write_input
from support.thread_fleet import ThreadFleet

from batchgen.errors import BatchgenError, EngineError, Interrupted, ModelError, RunError, VerifyError
from batchgen.executor import driver
from batchgen.executor.base import Job
from batchgen.executor.driver import OUTSTANDING, run_replicas
from batchgen.executor.fleet import Heard
from batchgen.executor.members import ClusterProgress, chosen, difference
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import News, Started, Work
from batchgen.io.events import read_events
from batchgen.io.manifest import read_manifest
from batchgen.records import Completion, Request
from batchgen.verify.integrity import verify_run

OTHER = {**FINGERPRINT, "canary": "off"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("in"), 50, bad=[3])


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    return run(make_job(folder), folder / "alone").root


@dataclass
class Case:
    """A job on replicas, and what came of it."""

    job: Job
    config: RunConfig
    out: Path
    fleet: ThreadFleet
    shown: list[tuple[int, int]]

    def run(self) -> JobReport:
        def on_progress(progress: ClusterProgress) -> None:
            self.shown.append((progress.done, len(progress.replicas)))

        try:
            return run_replicas(self.job, self.fleet, self.config, on_progress)
        finally:
            assert self.fleet.is_closed

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.out) if event["event"] == name]


def case(folder: Path, out: Path, replicas: int, rows_per_shard: int = 4, probe: float = 0.005, **how: Any) -> Case:
    job = make_job(folder)
    config = RunConfig(out, max_num_seqs=8, rows_per_shard=rows_per_shard, replicas=replicas, probe=probe)
    return Case(job, config, out, ThreadFleet(job, config, **how), [])


def check(made: Case, report: JobReport, root: str) -> None:
    """The root of a run that nothing happened to, and every row once."""
    assert report.root == root == read_manifest(made.out).root
    assert verify_run(made.out).ok
    committed = [event["shard"] for event in made.events("commit")]
    assert sorted(committed) == list(range(-(-50 // (made.config.rows_per_shard or 1)))), "every shard once"


@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
def test_the_same_root_on_any_number_of_replicas(folder: Path, root: str, tmp_path: Path, replicas: int) -> None:
    made = case(folder, tmp_path / "run", replicas)
    report = made.run()
    check(made, report, root)
    assert (report.counts.rows, report.counts.error, report.resumed, report.exit_code) == (100, 2, 0, 3)
    assert {event["replica"] for event in made.events("commit")} <= set(made.fleet.names)
    assert {event["replica"] for event in made.events("join")} == set(made.fleet.names)
    assert report.probes >= 2, "each process that makes samples proves itself"
    done = [done for done, _ in made.shown]
    assert (done[0], done[-1]) == (0, 100)


def test_long_shards_go_first(tmp_path: Path) -> None:
    folder = write_input(tmp_path / "in", 50)
    made = case(folder, tmp_path / "run", 1, rows_per_shard=17)  # row groups of 17 rows; the last has 16
    made.run()
    assert [shard for _, shard in made.fleet.given] == [1, 0, 2], "ten prompts of the first are shorter"


def test_a_replica_never_waits_at_the_end_of_a_shard(folder: Path, tmp_path: Path) -> None:
    held: dict[str, set[int]] = {}
    most = 0

    def on_give(fleet: ThreadFleet, name: str, work: Work) -> None:
        nonlocal most
        held.setdefault(name, set()).add(work.shard.index)
        most = max(most, len(held[name]))

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        for done in said.made if isinstance(said, News) else ():
            held[name].discard(done.shard.index)
        return said

    case(folder, tmp_path / "run", 2, on_give=on_give, on_said=on_said).run()
    assert most == OUTSTANDING


def steady(number: int) -> FakeEngine:
    return FakeEngine(order=number, seconds=0.004)


def lose_at(samples: int, *names: str) -> Callable[[ThreadFleet, str, Heard], Heard]:
    """Those replicas are lost as soon as they have told of so many samples."""

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if name in names and isinstance(said, News) and said.told.samples >= samples and name in fleet._alive:
            fleet.lose(name)
            return replace(said, made=())  # what it was about to hand in is lost with it
        return said

    return on_said


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_replica_lost_at_20_rows(
    folder: Path, root: str, tmp_path: Path, replicas: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = case(folder, tmp_path / "run", replicas, on_said=lose_at(20, "r0"), make=steady)
    check(made, made.run(), root)
    assert len(made.fleet.names) == replicas + 1, "another one takes its place"
    [lost] = made.events("lost")
    assert (lost["replica"], lost["reason"]) == ("r0", "its node is gone")
    assert 1 <= len(lost["shards"]) <= OUTSTANDING
    assert "replica r0 is lost and replaced: its node is gone" in caplog.text


def test_what_a_lost_replica_hands_in_late_is_not_taken(folder: Path, root: str, tmp_path: Path) -> None:
    late: list[News] = []

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if name == "r0" and isinstance(said, News) and said.made and not late:
            late.append(said)
            fleet.lose("r0")
            return News(said.told)
        if late and len(late) < 5:
            late.append(late[0])
            fleet._said.put(("r0", late[0]))
        return said

    made = case(folder, tmp_path / "run", 2, on_said=on_said)
    check(made, made.run(), root)
    assert len(late) == 5


def test_replicas_are_lost_all_the_time(folder: Path, root: str, tmp_path: Path) -> None:
    """Each of the first ten once it has made some samples."""
    names = [f"r{i}" for i in range(10)]
    made = case(folder, tmp_path / "run", 3, on_said=lose_at(20, *names), make=steady)
    check(made, made.run(), root)
    assert len(made.events("lost")) >= 3


def test_a_job_that_loses_every_replica_ends(folder: Path, tmp_path: Path) -> None:
    made = case(folder, tmp_path / "run", 2, on_said=lose_at(0, *(f"r{i}" for i in range(99))), rows_per_shard=25)
    with pytest.raises(EngineError, match=r"7 replicas were lost in a row, the last with the shards .*: its node is"):
        made.run()
    assert verify_run(made.out).rows == 0


def failing(*numbers: int) -> Callable[[int], FakeEngine]:
    def make(number: int) -> FakeEngine:
        if number in numbers:
            raise ModelError("there is no such model", where="model", hint="copy it to every machine")
        return FakeEngine(order=number)

    return make


def test_starts_that_fail(folder: Path, root: str, tmp_path: Path) -> None:
    made = case(folder, tmp_path / "run", 3, make=failing(0, 2))
    check(made, made.run(), root)
    assert [event["reason"] for event in made.events("lost")] == ["there is no such model"] * 2
    made = case(folder, tmp_path / "none", 3, make=failing(*range(99)))
    with pytest.raises(ModelError, match="there is no such model") as caught:
        made.run()
    assert (caught.value.where, caught.value.hint) == ("model", "copy it to every machine")


def test_a_replica_with_another_canary_gets_no_work(
    folder: Path, root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make(number: int) -> FakeEngine:
        return FakeEngine(order=number, seconds=0.002, fingerprint=OTHER if number == 0 else FINGERPRINT)

    made = case(folder, tmp_path / "run", 3, make=make)
    check(made, made.run(), root)
    assert {name for name, _ in made.fleet.given} <= {"r1", "r2"}
    assert made.fleet.ended["r0"]
    [refused] = made.events("refuse")
    assert refused["replica"] == "r0"
    assert "replica r0 gets no work: its canary is off, and not None" in caplog.text
    assert len(made.fleet.names) == 3, "another one on that machine would be like it"


def test_two_replicas_that_do_not_agree(folder: Path, tmp_path: Path) -> None:
    """Who is right cannot be known, so none of them works."""
    made = case(folder, tmp_path / "run", 2, make=lambda number: FakeEngine(fingerprint=[FINGERPRINT, OTHER][number]))
    with pytest.raises(EngineError, match=r"no two replicas compute alike, so none can be trusted; r\d is not like r"):
        made.run()
    assert made.fleet.given == []


def test_a_run_that_exists_says_who_is_right(folder: Path, root: str, tmp_path: Path) -> None:
    made = case(folder, tmp_path / "run", 2, on_said=interrupting(1))
    with pytest.raises(Interrupted):
        made.run()

    def make(number: int) -> FakeEngine:
        time.sleep(0.1 * number)
        return FakeEngine(fingerprint=OTHER if number == 0 else FINGERPRINT)

    again = case(folder, tmp_path / "run", 2, make=make)
    assert again.run().root == root
    assert {name for name, _ in again.fleet.given} == {"r1"}
    third = case(folder, tmp_path / "run", 2, make=lambda number: FakeEngine(fingerprint=OTHER))
    with pytest.raises(RunError, match="canary"):
        third.run()


def test_who_may_work_beside_whom() -> None:
    one = Started({"numerics": "native-sm90/1", "canary": "a"}, {"device": "NVIDIA H200"}, {})
    assert difference(one, one) is None
    assert difference(one, replace(one, fingerprint={"numerics": "native-sm90/1", "canary": "b"})) == (
        "its canary is b, and not a"
    )
    h100 = replace(one, about={"device": "NVIDIA H100 80GB HBM3"})
    assert difference(one, h100) == (
        "it runs on NVIDIA H100 80GB HBM3, and not on NVIDIA H200; native-sm90/1 wants devices of one kind"
    )
    gpu = Started({"numerics": "portable/1"}, {"device": "NVIDIA H200"}, {})
    assert difference(gpu, replace(gpu, about={"device": "cpu"})) is None, "portable means that"
    assert chosen([("r0", one)], 1) == one
    assert chosen([("r0", one)], 3) is None
    assert chosen([("r0", h100), ("r1", one)], 3) is None
    assert chosen([("r0", h100), ("r1", one), ("r2", one)], 3) == one


def interrupting(shards: int) -> Callable[[ThreadFleet, str, Heard], Heard]:
    """A signal once so many shards were handed in."""
    left = shards

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        nonlocal left
        if isinstance(said, News) and said.made:
            left -= len(said.made)
            if left <= 0 and signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
                signal.raise_signal(signal.SIGINT)
                assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "a second one ends the process"
        return said

    return on_said


@pytest.mark.parametrize("shards", [1, 4, 9])
def test_a_signal_keeps_what_is_complete_and_another_number_goes_on(
    folder: Path, root: str, tmp_path: Path, shards: int
) -> None:
    made = case(folder, tmp_path / "run", 3, on_said=interrupting(shards))
    with pytest.raises(Interrupted, match=r"stopped by SIGINT; \d+ of 100 samples are kept"):
        made.run()
    kept = read_manifest(made.out)
    assert len(kept.shards) >= shards, "also the shard that came with the signal"
    assert verify_run(made.out).counts == {"unfinished": 1}
    again = case(folder, tmp_path / "run", 2)
    report = again.run()
    assert (report.root, report.resumed) == (root, kept.counts.rows)
    assert {shard for _, shard in again.fleet.given} == set(range(13)) - {shard.index for shard in kept.shards}
    finished = case(folder, tmp_path / "run", 5)
    assert (finished.run().root, finished.fleet.given, len(finished.fleet.names)) == (root, [], 1)


def slow_first(number: int) -> FakeEngine:
    return FakeEngine(order=number, seconds=0.03 if number == 0 else 0.0)


def test_idle_replicas_take_over_the_slowest(folder: Path, root: str, tmp_path: Path) -> None:
    made = case(folder, tmp_path / "run", 3, make=slow_first)
    check(made, made.run(), root)
    begun = made.events("twin")
    assert begun
    assert all(event["replica"] != "r0" for event in begun)
    makers = {event["shard"]: event["replica"] for event in made.events("commit")}
    assert any(makers[event["shard"]] == event["replica"] for event in begun), "the first that is ready counts"


@dataclass
class Liar(FakeEngine):
    """Answers otherwise, and says that it is as the others."""

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        for completion in super().generate(requests):
            lie = completion.row_key == "row-30" and completion.sample_index == 1
            yield replace(completion, text="a lie") if lie else completion


def twins_of(make: Callable[[int], FakeEngine], folder: Path, out: Path) -> Case:
    """Two shards, both given to whoever starts first; the other makes the twin of one, and never hands in the other."""

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if name == "r1" and isinstance(said, News):
            return replace(said, made=tuple(made for made in said.made if made.shard.index == 1))
        return said

    return case(folder, out, 2, rows_per_shard=25, make=make, on_said=on_said)


def late(number: int, kind: type[FakeEngine]) -> FakeEngine:
    if number == 1:
        time.sleep(0.1)
    return kind(order=number) if number == 1 else FakeEngine(seconds=0.005)


def test_twins_that_are_equal(folder: Path, root: str, tmp_path: Path) -> None:
    made = twins_of(lambda number: late(number, FakeEngine), folder, tmp_path / "run")
    check_root = made.run().root
    assert check_root == root
    assert made.events("twins") == [
        {"at": made.events("twins")[0]["at"], "event": "twins", "shard": 1, "replicas": ["r1", "r0"], "exact": True}
    ]


def test_twins_that_differ_stop_the_job(folder: Path, root: str, tmp_path: Path) -> None:
    made = twins_of(lambda number: late(number, Liar), folder, tmp_path / "run")
    with pytest.raises(VerifyError) as caught:
        made.run()
    assert caught.value.message == (
        "shard 1 was made by replicas r1 and r0, and 1 of its rows differ, the first of them row 'row-30' sample 1"
    )
    assert caught.value.exit_code == 8
    evidence = json.loads(Path(caught.value.where).read_text())
    assert (evidence["row_key"], evidence["replicas"], evidence["shard"]) == ("row-30", ["r1", "r0"], 1)
    assert len(set(evidence["row_hash"])) == 2
    there = read_manifest(made.out)
    assert 1 not in {shard.index for shard in there.shards}, "none of it is in the run"
    assert not (made.out / "rows" / "part-00001.parquet").exists()
    assert case(folder, made.out, 1, rows_per_shard=25).run().root == root


def test_a_probe_that_differs_names_its_replica(folder: Path, tmp_path: Path) -> None:
    class Unsure(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            for completion in super().generate(requests):
                second = sum(r.row_key == completion.row_key and r.fresh for r in self.asked)
                yield replace(completion, text="unsure") if second else completion

    made = case(folder, tmp_path / "run", 2, make=lambda number: [FakeEngine(), Unsure()][number], probe=1.0)
    with pytest.raises(VerifyError, match=r"replica r1: row 'row-.*' sample \d was made twice and differs") as caught:
        made.run()
    evidence = json.loads(Path(caught.value.where).read_text())
    assert (evidence["replica"], evidence["second"]["text"]) == ("r1", "unsure")
    assert evidence["host"]["pid"]


def test_an_engine_that_is_at_fault_stops_the_job(folder: Path, tmp_path: Path) -> None:
    """One that answers twice would do so anywhere: it is no loss of a machine."""

    class Twice(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            for completion in super().generate(requests):
                yield from [completion, completion]

    made = case(folder, tmp_path / "run", 2, make=lambda number: Twice())
    with pytest.raises(BatchgenError, match="a completion came twice"):
        made.run()
    assert len(made.fleet.names) == 2


def test_an_engine_that_fails_is_lost_and_replaced(folder: Path, root: str, tmp_path: Path) -> None:
    class Failing(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            for at, completion in enumerate(super().generate(requests)):
                if at == 20:
                    raise EngineError("the engine died 7 times in a row")
                yield completion

    made = case(folder, tmp_path / "run", 2, make=lambda number: Failing() if number == 0 else FakeEngine())
    check(made, made.run(), root)
    assert made.events("lost")[0]["reason"] == "the engine died 7 times in a row"
    assert made.fleet.ended["r0"]


def test_the_rows_are_those_of_a_run_alone(folder: Path, tmp_path: Path) -> None:
    """Not only the hashes: every column, the passthrough ones too."""
    made = case(folder, tmp_path / "run", 3, rows_per_shard=8)
    made.run()
    assert read_rows(made.out).equals(read_rows(folder / "alone"))


def test_a_driver_that_took_late_results_would_be_caught(
    folder: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-test: shards of replicas that are lost come twice."""
    right = driver.Driver._take

    def taking(self: driver.Driver, name: str, said: Heard) -> None:
        if isinstance(said, News) and name not in self._members:
            for made in said.made:
                self._book.commit(made, name)
        right(self, name, said)

    monkeypatch.setattr(driver.Driver, "_take", taking)
    with pytest.raises(Exception):  # noqa: B017, PT011  whatever notices first
        test_what_a_lost_replica_hands_in_late_is_not_taken(folder, root, tmp_path)
