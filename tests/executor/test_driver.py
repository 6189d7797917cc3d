"""A job on several replicas: the same root whoever makes what, and what becomes of replicas that fail."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_engine import FINGERPRINT, FakeEngine
from support.fake_jobs import make_job, read_rows, run, write_input
from support.jobs import write_parquet
from support.replica_case import case, check, interrupting
from support.thread_fleet import ThreadFleet

from batchgen.errors import EngineError, Interrupted, ModelError, RunError
from batchgen.executor.driver import OUTSTANDING
from batchgen.executor.fleet import Heard
from batchgen.executor.members import chosen, difference
from batchgen.executor.work import News, Started, Work
from batchgen.io.manifest import read_manifest
from batchgen.object_path import ObjectPath
from batchgen.verify.integrity import verify_run

OTHER = {**FINGERPRINT, "canary": "off"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("in"), 50, bad=[3])


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    return run(make_job(folder), folder / "alone").root


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
    """By the row groups of the input, here of ten rows."""
    prompts = ["short", "a middling prompt " * 20, "a very long prompt " * 100, "short"]
    write_parquet(
        write_input(tmp_path, 1) / "in.parquet",
        10,
        id=[f"row-{i}" for i in range(40)],
        prompt=[f"{prompts[i // 10]} {i}" for i in range(40)],
        label=["a"] * 40,
        meta=[1] * 40,
    )
    made = case(tmp_path, tmp_path / "run", 1, rows_per_shard=5)
    made.run()
    assert [shard for _, shard in made.fleet.given] == [4, 5, 2, 3, 6, 7, 0, 1], "rows of two digits are longer"


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


def test_nobody_waits_while_another_has_two(folder: Path, tmp_path: Path) -> None:
    made = case(folder, tmp_path / "run", 2, rows_per_shard=25)
    made.run()
    assert sorted(made.fleet.given[:2]) in ([("r0", 0), ("r1", 1)], [("r0", 1), ("r1", 0)])


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


def test_two_that_do_not_agree_while_a_third_does_not_come(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is not believed for being the first."""
    monkeypatch.setattr("batchgen.executor.gathering._CONFIRMING", 0.3)

    def make(number: int) -> FakeEngine:
        time.sleep(5.0 if number == 2 else 0.0)
        return FakeEngine(fingerprint=OTHER if number else FINGERPRINT)

    with pytest.raises(EngineError, match="no two replicas compute alike"):
        case(folder, tmp_path / "run", 3, make=make).run()


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


def test_a_run_in_an_object_store(folder: Path, root: str, bucket: ObjectPath) -> None:
    """Interrupted on three replicas, finished by two."""
    made = case(folder, bucket / "run", 3, on_said=interrupting(4))
    with pytest.raises(Interrupted):
        made.run()
    assert verify_run(made.out).counts == {"unfinished": 1}
    again = case(folder, bucket / "run", 2)
    check(again, again.run(), root)


def test_the_rows_are_those_of_a_run_alone(folder: Path, tmp_path: Path) -> None:
    """Not only the hashes: every column, the passthrough ones too."""
    case(folder, tmp_path / "run", 3, rows_per_shard=8).run()
    assert read_rows(tmp_path / "run").equals(read_rows(folder / "alone"))
