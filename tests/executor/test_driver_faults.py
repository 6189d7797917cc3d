"""Replicas that are lost, that lie, that hand in late: no row of a run is another, or there twice, for that."""

import json
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, read_rows, run, write_input
from support.replica_case import Case, case, check, lose_at, steady
from support.thread_fleet import ThreadFleet

from batchgen.errors import BatchgenError, EngineError, ModelError, VerifyError
from batchgen.executor import driver
from batchgen.executor.compare import from_bits
from batchgen.executor.driver import OUTSTANDING
from batchgen.executor.fleet import Heard, Lost
from batchgen.executor.twins import Twins
from batchgen.executor.work import News
from batchgen.io.manifest import read_manifest
from batchgen.plan import Shard
from batchgen.records import Completion, Request
from batchgen.verify.integrity import verify_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("in"), 50, bad=[3])


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    return run(make_job(folder), folder / "alone").root


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
    with pytest.raises(EngineError, match=r"9 replicas were lost in a row, the last with the shards .*: its node is"):
        made.run()
    assert verify_run(made.out).rows == 0


def test_a_replica_that_is_silent_is_lost(
    folder: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stands still, as by SIGSTOP, and nobody else says so."""
    released = Event()

    class Stopped(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            released.wait()
            yield from super().generate(requests)

    monkeypatch.setattr(driver, "LEAST_PATIENCE", 0.5)
    made = case(folder, tmp_path / "run", 1, make=lambda number: FakeEngine() if number else Stopped())
    made.config = replace(made.config, watchdog_seconds=0.1)
    check(made, made.run(), root)
    assert made.events("lost")[0]["reason"] == "nothing was heard of it for 0.5 s"
    assert made.fleet.ended["r0"]
    released.set()


def test_starts_that_fail_each_time_are_not_tried_all_the_time(folder: Path, root: str, tmp_path: Path) -> None:
    def make(number: int) -> FakeEngine:
        if number:
            raise ModelError("there is no such model")
        return FakeEngine(seconds=0.01)

    made = case(folder, tmp_path / "run", 2, make=make)
    check(made, made.run(), root)
    assert 3 <= len(made.fleet.names) <= 7


def test_a_replica_that_hands_in_what_it_was_not_given(folder: Path, tmp_path: Path) -> None:
    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if isinstance(said, News):
            return replace(said, made=tuple(replace(made, shard=Shard(99, 0, 4)) for made in said.made))
        return said

    with pytest.raises(BatchgenError, match="handed in another shard than") as caught:
        case(folder, tmp_path / "run", 1, on_said=on_said).run()
    assert caught.value.exit_code == BatchgenError.exit_code


def test_who_is_lost_while_a_job_starts_is_replaced(folder: Path, root: str, tmp_path: Path) -> None:
    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if name in gone:
            fleet._alive.pop(name, None)
            return Lost(EngineError("its machine is gone"))
        return said

    gone = {"r0", "r1"}
    made = case(folder, tmp_path / "run", 1, on_said=on_said)
    check(made, made.run(), root)
    gone = {f"r{i}" for i in range(99)}
    with pytest.raises(EngineError, match="its machine is gone"):
        case(folder, tmp_path / "other", 2, on_said=on_said).run()


def slow_first(number: int) -> FakeEngine:
    return FakeEngine(order=number, seconds=0.1 if number == 0 else 0.0)


def test_idle_replicas_take_over_the_slowest(folder: Path, root: str, tmp_path: Path) -> None:
    made = case(folder, tmp_path / "run", 3, make=slow_first)
    check(made, made.run(), root)
    begun = made.events("twin")
    assert begun
    assert all(event["replica"] != "r0" for event in begun)
    makers = {event["shard"]: event["replica"] for event in made.events("commit")}
    assert any(makers[event["shard"]] == event["replica"] for event in begun), "the first that is ready counts"


def test_what_is_open_for_longest_has_a_twin_first() -> None:
    twins, shards = Twins(None), [Shard(index, 4 * index, 4 * index + 4) for index in range(3)]  # type: ignore[arg-type]
    for index in (2, 0, 1):
        twins.begun(shards[index])
    assert (twins.next(), twins.next()) == (shards[2], shards[0])
    assert twins.is_missing(shards[2], []), "both of its replicas are lost"
    assert (twins.next(), twins.next()) == (shards[1], None)


@dataclass
class Liar(FakeEngine):
    """Answers otherwise, and says that it is as the others."""

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        for completion in super().generate(requests):
            lie = completion.row_key == "row-20" and completion.sample_index == 1
            yield replace(completion, text="a lie") if lie else completion


def twins_of(make: Callable[[int], FakeEngine], folder: Path, out: Path) -> Case:
    """Three shards, the second first: it has a twin that comes earlier, from whoever never hands in the third."""

    def on_said(fleet: ThreadFleet, name: str, said: Heard) -> Heard:
        if name == "r1" and isinstance(said, News):
            return replace(said, made=tuple(made for made in said.made if made.shard.index < 2))
        return said

    return case(folder, out, 2, rows_per_shard=17, make=make, on_said=on_said)


def slow_beside(number: int, kind: type[FakeEngine]) -> FakeEngine:
    if number == 0:
        return FakeEngine(seconds=0.015)
    time.sleep(0.1)  # it is the second to start
    return kind(order=number)


def test_twins_that_are_equal(folder: Path, root: str, tmp_path: Path) -> None:
    made = twins_of(lambda number: slow_beside(number, FakeEngine), folder, tmp_path / "run")
    check_root = made.run().root
    assert check_root == root
    assert made.events("twins") == [
        {"at": made.events("twins")[0]["at"], "event": "twins", "shard": 1, "replicas": ["r1", "r0"], "exact": True}
    ]


def test_twins_that_differ_stop_the_job(folder: Path, root: str, tmp_path: Path) -> None:
    made = twins_of(lambda number: slow_beside(number, Liar), folder, tmp_path / "run")
    with pytest.raises(VerifyError) as caught:
        made.run()
    text = read_rows(folder / "alone")["text"].to_pylist()[41]
    assert caught.value.message == (
        "shard 1 was made by the replicas r1 and r0, and 1 of its rows differ, the first of them row "
        f"'row-20' sample 1: text 'a lie', then {text!r}"
    )
    assert caught.value.exit_code == 8
    evidence = json.loads(Path(caught.value.where).read_text())
    assert (evidence["row_key"], evidence["replicas"], evidence["shard"]) == ("row-20", ["r1", "r0"], 1)
    assert from_bits(evidence["first"]).text == "a lie"
    assert from_bits(evidence["second"]).text == text
    assert evidence["fingerprint"] == read_manifest(made.out).fingerprint, "as `explain` wants it"
    there = read_manifest(made.out)
    assert 1 not in {shard.index for shard in there.shards}, "none of it is in the run"
    assert not (made.out / "rows" / "part-00001.parquet").exists()
    assert case(folder, made.out, 1, rows_per_shard=17).run().root == root


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
