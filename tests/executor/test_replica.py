"""Ranks in processes of their own as one engine: its answers, and what becomes of it when something goes wrong."""

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.children import child_of
from support.engine_cases import expected, requests
from support.fake_rank import MODEL
from support.jobs import job_spec

from batchgen.errors import BatchgenError, EngineError
from batchgen.executor import replica
from batchgen.executor.rank_process import RankProcesses
from batchgen.executor.replica import DepEngine
from batchgen.executor.run_config import RunConfig
from batchgen.records import Completion, Request

SIZE = 3
SOON = 8.0  # seconds in which the end of a rank must be known, on a busy machine


def start(size: int = SIZE, **how: Any) -> DepEngine:
    config = RunConfig(Path("unused"), device="cpu", expert_parallel_size=size, **({"max_num_seqs": 2} | how))
    return DepEngine.start(job_spec(), MODEL, config, "support.fake_rank:main")


@pytest.fixture(scope="module")
def shared() -> Iterator[DepEngine]:
    """One that no test harms."""
    engine = start()
    yield engine
    engine.close()


def asking(row_key: str, **fields: Any) -> Request:
    return replace(requests()[2], row_key=row_key, **fields)


def check(completions: list[Completion]) -> None:
    assert len(completions) == len(requests())
    assert {completion.row_key: completion for completion in completions} == expected()


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_answers_of_one_engine(shared: DepEngine) -> None:
    for _ in range(3):
        check(list(shared.generate(requests())))
    assert shared.about == {"device": "fake", "rank": 0, "ranks": SIZE}
    assert shared.fingerprint == {"numerics": "fake", "canary": "even"}
    assert all(stats.steps > 0 for stats in shared.stats)
    assert len({stats.steps + stats.idle_steps for stats in shared.stats}) == 1
    assert 0 <= shared.idle_share < 0.9
    assert 1 / SIZE <= shared.balance <= 1


def test_no_request_at_all(shared: DepEngine) -> None:
    assert list(shared.generate([])) == []
    check(list(shared.generate(requests())))


def test_many_more_than_there_is_room_for(shared: DepEngine) -> None:
    many = [replace(request, sample_index=i) for i in range(40) for request in requests()]
    taken, most = 0, 0

    def reading() -> Iterator[Request]:
        nonlocal taken
        for request in many:
            taken += 1
            yield request

    done = 0
    for completion in shared.generate(reading()):
        done += 1
        most = max(most, taken - done)
        assert (
            replace(completion, sample_index=expected()[completion.row_key].sample_index)
            == (expected()[completion.row_key])
        )
    assert done == len(many)
    assert most <= SIZE * 3 + 8, "requests are read as there is room, and a little ahead"


def test_refused_rows_and_wrong_requests(shared: DepEngine) -> None:
    empty = asking("empty", prompt_token_ids=())
    found = list(shared.generate([empty, *requests(), asking("far", prompt_token_ids=(1,) * 25)]))
    errors = {c.row_key: c.error_code for c in found if c.finish_reason == "error"}
    assert errors == {"empty": "prompt_empty", "far": "prompt_overlong"}
    with pytest.raises(EngineError, match="seed"):
        list(shared.generate([*requests(), asking("bad", seed=-1)]))
    check(list(shared.generate(requests())))


def test_closed_early(shared: DepEngine) -> None:
    for count in (0, 1, 4):
        stream = shared.generate(requests() * 20)
        for _ in range(count):
            next(stream)
        with pytest.raises(EngineError, match="already generating") if count else pytest.raises(StopIteration):
            next(shared.generate([]))
        stream.close()
        check(list(shared.generate(requests())))


def test_an_input_that_fails(shared: DepEngine) -> None:
    def failing() -> Iterator[Request]:
        yield from requests()[:4]
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        list(shared.generate(failing()))
    check(list(shared.generate(requests())))


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("kill 1", EngineError, "rank 1 of 3 was killed by SIGKILL"),
        ("raise 2", EngineError, "rank 2: ZeroDivisionError: by a planted zero"),
        ("refuse 0", EngineError, "the fake runner: rank 0: planted\n  take it out"),
    ],
)
def test_a_rank_that_fails(fault: str, kind: type[BatchgenError], message: str) -> None:
    """Known soon and by its name, whoever notices first; the other ranks end too."""
    engine = start()
    pids = engine.pids
    stream = engine.generate([*requests(), asking(fault), *requests()])
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        list(stream)
    assert time.monotonic() - started < SOON
    assert str(caught.value).startswith(message)
    if fault.startswith("raise"):
        assert "test" not in str(caught.value)
        assert "fake_rank.py" in str(caught.value.__cause__), "where it happened is not lost"
    assert gone(pids)
    with pytest.raises(EngineError, match="the ranks of this engine have ended"):
        next(engine.generate(requests()))


def test_a_rank_that_dies_while_nobody_listens() -> None:
    engine = start(2)
    check(list(engine.generate(requests())))
    os.kill(engine.pids[1], signal.SIGKILL)
    with pytest.raises(EngineError, match="rank 1 of 2 was killed by SIGKILL"):
        list(engine.generate(requests()))


def test_ranks_end_with_their_engine() -> None:
    engine = start(2)
    pids = engine.pids
    stream = engine.generate(requests())
    next(stream)
    del stream
    assert not gone(pids)
    del engine
    gc.collect()
    assert gone(pids)


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from executor.test_replica import asking, start
engine = start(2)
print(*engine.pids, flush=True)
for completion in engine.generate(asking("slow", sample_index=i) for i in range(10**6)):
    if completion.sample_index == 5:
        print("begun", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_driver(number: signal.Signals) -> None:
    """However it ends, its ranks do too, and a Ctrl-C of its terminal reaches it alone."""
    program = DRIVER.format(tests=str(Path(__file__).parents[1]))
    command = [sys.executable, "-P", "-c", program]
    with child_of(command, stdout=subprocess.PIPE, process_group=0) as driver:
        assert driver.stdout
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert driver.stdout.readline() == "begun\n"
        os.killpg(driver.pid, number)
        driver.communicate(timeout=30)
    limit = time.monotonic() + SOON
    while not gone(pids) and time.monotonic() < limit:
        time.sleep(0.05)
    assert gone(pids)


@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_a_ctrl_c_while_ranks_are_told(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """It may come when some have been told to begin and others not: these would wait for each other."""
    engine, right, told = start(), RankProcesses.send, 0
    pids = engine.pids

    def send(ranks: RankProcesses, rank: int, message: object) -> None:
        nonlocal told
        told += 1
        if told == after + 1:
            raise KeyboardInterrupt
        right(ranks, rank, message)

    monkeypatch.setattr(RankProcesses, "send", send)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(engine.generate(requests()))
    assert time.monotonic() - started < SOON
    assert gone(pids)
    with pytest.raises(EngineError, match="the ranks of this engine have ended"):
        list(engine.generate(requests()))


def test_a_start_that_fails() -> None:
    started = time.monotonic()
    with pytest.raises(EngineError, match="rank 1: cannot start") as caught:
        start(eplb_interval=666)
    assert caught.value.hint == "as planted"
    assert time.monotonic() - started < 2 * SOON


def test_ranks_that_are_not_alike() -> None:
    with pytest.raises(EngineError, match="rank 1 is not like rank 0: its canary is odd, and that of rank 0 even"):
        start(2, eplb_interval=13)


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(replica, "free_address", lambda: address)
        with pytest.raises(EngineError, match=f"^rank 0 cannot listen at {address}"):
            start(2)


def test_ranks_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="expert_parallel_size must be from 1 to 8, got 9"):
        RunConfig(Path("unused"), expert_parallel_size=9)
    monkeypatch.setattr(MODEL.config.moe, "num_experts", 2)
    with pytest.raises(EngineError, match="3 ranks are more than the 2 experts"):
        start()
    monkeypatch.setattr(MODEL.config, "moe", None)
    with pytest.raises(EngineError, match="has no experts that 3 ranks could share"):
        start()
