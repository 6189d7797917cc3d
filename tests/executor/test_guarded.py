"""An engine that outlives its processes: what is asked again, who is blamed, and when it gives up."""

import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.engine_cases import expected, requests
from support.fake_engine import FINGERPRINT, complete
from support.fake_rank import MODEL
from support.jobs import job_spec

from batchgen.errors import BatchgenError, EngineError, InputError
from batchgen.executor import guarded
from batchgen.executor.guarded import LONE_DEATHS, MOST_DEATHS, GuardedEngine
from batchgen.executor.replica import DepEngine
from batchgen.executor.run_config import RunConfig
from batchgen.records import Completion, Request, SamplingParams


@dataclass
class Ward:
    """What all lives of an engine share: which rows kill it, and how often."""

    deadly: Counter[str] = field(default_factory=Counter)  # row key -> deaths that it still brings
    failing_starts: int = 0
    fingerprint: Mapping[str, str] = field(default_factory=lambda: FINGERPRINT)
    lives: int = 0
    asked: list[list[str]] = field(default_factory=list)  # of each life, the rows in their order
    heard: list[str] = field(default_factory=list)

    def start(self) -> "Life":
        self.lives += 1
        self.asked.append([])
        if self.lives > 1 and self.failing_starts:
            self.failing_starts -= 1
            raise EngineError("no memory for a start")
        return Life(self)

    def guard(self) -> GuardedEngine:
        return GuardedEngine(self.start, self.heard.append)


class Life:
    """One life: answers in batches of four, and dies where a deadly row is among them."""

    def __init__(self, ward: Ward) -> None:
        self.ward, self.is_alive = ward, True
        self.fingerprint = ward.fingerprint
        self.about: Mapping[str, Any] = {"device": "ward"}

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        assert self.is_alive
        waiting = iter(requests)
        while batch := [request for request in islice(waiting, 4) if request]:
            self.ward.asked[-1] += [request.row_key for request in batch]
            for request in batch:
                if self.ward.deadly[request.row_key] > 0:
                    self.ward.deadly[request.row_key] -= 1
                    self.is_alive = False
                    raise EngineError("rank 0 of 1 was killed by SIGSEGV", hint="what is committed is valid")
            yield from map(complete, batch)

    def close(self) -> None:
        self.is_alive = False


def asking(*keys: str) -> list[Request]:
    return [Request(key, 0, i, (1, 2, 3), SamplingParams(max_tokens=4)) for i, key in enumerate(keys)]


def answers(engine: GuardedEngine, asked: Iterable[Request | None]) -> dict[str, Completion]:
    found = list(engine.generate(asked))
    assert len({completion.row_key for completion in found}) == len(found), "an answer came twice"
    return {completion.row_key: completion for completion in found}


def check(found: dict[str, Completion], asked: Iterable[Request], given_up: Collection[str] = ()) -> None:
    assert set(found) == {request.row_key for request in asked}
    for request in asked:
        if request.row_key in given_up:
            assert found[request.row_key].error_code == "replica_died"
            assert found[request.row_key].token_ids == ()
        else:
            assert found[request.row_key] == complete(request)


ROWS = [f"row-{i}" for i in range(12)]
BAD = "the engine died with this row each time, also with this row alone"


def test_nothing_dies() -> None:
    ward = Ward()
    engine = ward.guard()
    check(answers(engine, asking(*ROWS)), asking(*ROWS))
    assert (ward.lives, ward.heard, engine.deaths, engine.about) == (1, [], 0, {"device": "ward"})


@pytest.mark.parametrize("row", [0, 5, 11])
def test_one_death_costs_no_row(row: int) -> None:
    """What was in hand is asked again, one at a time, and then all the rest together."""
    ward = Ward(Counter({ROWS[row]: 1}))
    check(answers(ward.guard(), asking(*ROWS)), asking(*ROWS))
    assert ward.lives == 2
    assert len(set(ward.asked[0]) & set(ward.asked[1])) in range(1, 5), "only what had no answer"
    assert ward.heard[0].startswith("rank 0 of 1 was killed by SIGSEGV; in hand: row 'row-")


@pytest.mark.parametrize("row", [0, 5, 11])
def test_a_row_that_always_kills_becomes_an_error(row: int, caplog: pytest.LogCaptureFixture) -> None:
    poison = ROWS[row]
    ward = Ward(Counter({poison: 99}))
    found = answers(ward.guard(), asking(*ROWS))
    check(found, asking(*ROWS), {poison})
    assert found[poison].error_message == BAD, "no process and no number: it is hashed"
    assert ward.lives == 2 + LONE_DEATHS
    assert f"row {poison!r} sample 0 is given up" in caplog.text


def test_a_row_that_is_alone_in_the_job() -> None:
    ward = Ward(Counter({"only": 99}))
    check(answers(ward.guard(), asking("only")), asking("only"), {"only"})


def test_a_kill_from_outside_while_a_suspect_is_alone_costs_no_row() -> None:
    ward = Ward(Counter({"row-5": 1 + LONE_DEATHS - 1}))
    check(answers(ward.guard(), asking(*ROWS)), asking(*ROWS))


def test_several_rows_that_kill() -> None:
    poison = {"row-2", "row-6", "row-7"}
    ward = Ward(Counter(dict.fromkeys(poison, 99)))
    check(answers(ward.guard(), asking(*ROWS)), asking(*ROWS), poison)


def test_a_machine_that_fails_with_every_row_stops_the_job() -> None:
    """And no row is blamed for it."""
    ward = Ward(Counter(dict.fromkeys(ROWS[4:], 99)))
    found: list[Completion] = []
    with pytest.raises(
        EngineError, match=f"the engine died {MOST_DEATHS + 1} times in a row; at last: rank 0"
    ) as caught:
        found.extend(ward.guard().generate(asking(*ROWS)))
    assert caught.value.hint == "what is committed is valid"
    assert all(completion.finish_reason != "error" for completion in found)
    assert ward.lives == MOST_DEATHS + 1


def test_a_row_that_was_given_up_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """A probe of it, too, and nothing dies for that."""
    ward = Ward(Counter({"row-5": 99}))
    engine = ward.guard()
    answers(engine, asking(*ROWS))
    lives = ward.lives
    again = [replace(request, fresh=True) for request in asking(*ROWS)]
    check(answers(engine, again), again, {"row-5"})
    assert ward.lives == lives


def test_starts_that_fail_are_tried_again() -> None:
    ward = Ward(Counter({"row-5": 1}), failing_starts=2)
    check(answers(ward.guard(), asking(*ROWS)), asking(*ROWS))
    assert [text for text in ward.heard if text.startswith("no memory")] == [
        "no memory for a start; in hand: nothing"
    ] * 2
    ward = Ward(Counter({"row-5": 1}), failing_starts=99)
    with pytest.raises(EngineError, match="at last: no memory for a start"):
        answers(ward.guard(), asking(*ROWS))


def test_an_engine_that_comes_back_as_another() -> None:
    ward = Ward(Counter({"row-5": 1}))
    engine = ward.guard()
    ward.fingerprint = {**FINGERPRINT, "canary": "other"}
    with pytest.raises(EngineError, match="after a death the engine came back as another"):
        answers(engine, asking(*ROWS))


def test_an_error_of_the_input_is_no_death() -> None:
    def failing() -> Iterator[Request]:
        yield from asking(*ROWS[:3])
        raise InputError("torn")

    ward = Ward()
    engine = ward.guard()
    with pytest.raises(InputError, match="torn"):
        list(engine.generate(failing()))
    assert (ward.lives, ward.heard) == (1, [])
    check(answers(engine, asking(*ROWS)), asking(*ROWS))


def test_what_is_held_back_does_not_wait_for_ever() -> None:
    """A caller that gives no more until it has all answers gets them."""
    ward, found = Ward(Counter({"row-1": 99})), list[Completion]()

    def waiting() -> Iterator[Request | None]:
        yield from asking("row-1")
        for _ in range(100):
            if found:
                yield from asking("row-2")
                return
            yield None
        raise AssertionError("nothing came")

    for completion in ward.guard().generate(waiting()):
        found.append(completion)
    assert [completion.error_code for completion in found] == ["replica_died", None]


def test_closed_early() -> None:
    ward = Ward(Counter({"row-1": 1}))
    engine = ward.guard()
    with closing(engine.generate(asking(*ROWS))) as stream:
        next(stream)
    check(answers(engine, asking(*ROWS)), asking(*ROWS))


def test_a_guard_that_blames_at_once_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-test of kills from outside."""
    monkeypatch.setattr(guarded, "LONE_DEATHS", 1)
    with pytest.raises(AssertionError):
        test_a_kill_from_outside_while_a_suspect_is_alone_costs_no_row()


# Real processes around the fake runner.


def processes(size: int, watchdog: float = 60.0) -> GuardedEngine:
    config = RunConfig(
        Path("unused"), device="cpu", expert_parallel_size=size, max_num_seqs=2, watchdog_seconds=watchdog
    )
    return GuardedEngine(lambda: DepEngine.start(job_spec(), MODEL, config, "support.fake_rank:main"))


def named(row_key: str) -> Request:
    return replace(requests()[2], row_key=row_key)


def check_real(engine: GuardedEngine, *more: Request) -> dict[str, Completion]:
    """All answers but those to `more` are as ever."""
    asked = [*requests()[:5], *more, *requests()[5:]]
    found = answers(engine, asked)
    assert {key: found[key] for key in expected()} == expected()
    return {request.row_key: found[request.row_key] for request in more}


@pytest.mark.parametrize("size", [1, 2])
def test_processes_that_are_killed(size: int, tmp_path: Path) -> None:
    engine = processes(size)
    with closing(engine):
        once = named(f"kill 0 {tmp_path / 'once'}")
        [answer] = check_real(engine, once).values()
        assert replace(answer, row_key="row 2") == expected()["row 2"]
        assert engine.deaths == 1
        assert engine.about["ranks"] == size
        inner: Any = engine._engine
        os.kill(inner.pids[-1], signal.SIGKILL)  # while nobody listens
        check_real(engine)


def test_a_row_that_ends_its_process_each_time() -> None:
    with closing(processes(1)) as engine:
        found = check_real(engine, named("exit 0"))
        assert found["exit 0"].error_code == "replica_died"
        assert engine.deaths == 1 + LONE_DEATHS


def test_a_process_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is known after the time of the watchdog, by the names of the rows in hand; slow is not hung."""
    with closing(processes(1, watchdog=2.5)) as engine:
        started = time.monotonic()
        check_real(engine, named(f"hang 0 {tmp_path / 'once'}"), *(named(f"slow {i}") for i in range(3)))
        assert 2.5 < time.monotonic() - started < 30
        assert engine.deaths == 1
    assert "no rank has made a step for 2.5 s; in hand: row" in caplog.text
    assert "hang 0" in caplog.text


def test_a_start_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchgen.executor.replica.STARTING", 0.2)
    config = RunConfig(Path("unused"), device="cpu", watchdog_seconds=0.1)
    with pytest.raises(EngineError, match=r"no rank was ready within 0\.2 s"):
        DepEngine.start(job_spec(), MODEL, config, "support.fake_rank:main")


def test_a_watchdog_of_a_bare_replica() -> None:
    config = RunConfig(Path("unused"), device="cpu", max_num_seqs=2, watchdog_seconds=1.5)
    engine = DepEngine.start(job_spec(), MODEL, config, "support.fake_rank:main")
    with (
        closing(engine),
        pytest.raises(BatchgenError, match=r"no rank has made a step for 1\.5 s; in hand: .*'hang 0'"),
    ):
        list(engine.generate([named("hang 0")]))
    assert not engine.is_alive
