"""Ranks in lockstep: as many steps on each, whoever has work and whenever it comes, and the answers of one engine."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.engine_cases import expected, requests
from support.fake_ranks import ListInbox, SteppedRunner, ThreadRank, run_ranks

from batchgen.engine import lockstep
from batchgen.engine.batch import Agreed, Chunk, Sampled
from batchgen.errors import EngineError
from batchgen.records import Request


def check_in_step(ranks: Sequence[ThreadRank]) -> None:
    """All ranks ran the same steps, none of which was empty on all, and nothing is left behind."""
    assert all(rank.runner.steps == ranks[0].runner.steps for rank in ranks)
    assert all(any(step) for step in ranks[0].runner.steps)
    for number, rank in enumerate(ranks):
        mine, stats = [step[number] for step in rank.runner.steps], rank.engine.stats
        assert stats.steps == sum(tokens > 0 for tokens in mine)
        assert stats.idle_steps == sum(tokens == 0 for tokens in mine)
        assert stats.step_tokens == sum(mine)
        assert stats.busiest_tokens == sum(map(max, rank.runner.steps))
        assert rank.engine.blocks.num_free == rank.engine.blocks.num_blocks


def check_answers(ranks: Sequence[ThreadRank]) -> None:
    for rank in ranks:
        wanted = rank.inbox.wanted
        assert {answer.row_key for answer in rank.answers} == {request.row_key for request in wanted}
        assert len(rank.answers) == len(wanted)
        assert all(answer == expected()[answer.row_key] for answer in rank.answers)


def dealt(size: int, shift: int = 0) -> list[list[Request]]:
    """The requests, dealt out in turn."""
    return [[*requests()[(rank + shift) % size :: size]] for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("max_num_seqs", [1, 4])
def test_any_number_of_ranks(size: int, max_num_seqs: int) -> None:
    ranks = run_ranks([ListInbox(part) for part in dealt(size)], max_num_seqs=max_num_seqs)
    check_in_step(ranks)
    check_answers(ranks)


def test_uneven_work() -> None:
    """Much, none at all, and one."""
    ranks = run_ranks([ListInbox(requests()[:9]), ListInbox([]), ListInbox(requests()[9:])])
    check_in_step(ranks)
    check_answers(ranks)
    assert ranks[1].engine.stats.steps == 0
    assert ranks[1].engine.stats.idle_steps == len(ranks[0].runner.steps)


def test_no_work_for_anybody() -> None:
    ranks = run_ranks([ListInbox([]), ListInbox([])])
    assert [rank.runner.steps for rank in ranks] == [[], []]


@pytest.mark.parametrize("gaps", [[(1,), (3, 0, 7)], [(0,), (40,)], [(25, 0), (0, 25)]])
def test_requests_that_come_late(gaps: list[tuple[int, ...]]) -> None:
    """A rank that has nothing yet serves the other; when none has anything, they wait and ask again."""
    ranks = run_ranks([ListInbox(part, gap) for part, gap in zip(dealt(2), gaps, strict=True)])
    check_in_step(ranks)
    check_answers(ranks)


def test_all_wait_when_none_has_anything() -> None:
    ranks = run_ranks([ListInbox(part, (9,)) for part in dealt(2)])
    check_answers(ranks)
    assert all(rank.inbox.waits >= 8 for rank in ranks)
    check_in_step(ranks)


def test_blocks_run_out_on_one_rank_alone() -> None:
    ranks = run_ranks([ListInbox(requests()), ListInbox(requests()[:1])], num_blocks=9, cache_blocks=3)
    check_in_step(ranks)
    check_answers(ranks)
    assert ranks[0].engine.stats.preemptions > 0


def test_a_refused_request_is_answered_by_its_rank() -> None:
    empty = replace(requests()[0], row_key="empty", prompt_token_ids=())
    ranks = run_ranks([ListInbox([empty]), ListInbox([*requests()[:2], replace(empty, row_key="too")])])
    assert [answer.error_code for answer in ranks[0].answers] == ["prompt_empty"]
    assert {answer.row_key for answer in ranks[1].answers} == {"row 0", "row 1", "too"}
    assert ranks[0].engine.stats.idle_steps == len(ranks[0].runner.steps)


@pytest.mark.parametrize("looks", [(1, 1), (1, 6), (9, 2), (4, None)])
def test_what_is_dropped(looks: tuple[int | None, ...]) -> None:
    """A rank that drops its work goes on serving the others, and is clean at the end."""
    parts = zip(dealt(2), looks, strict=True)
    ranks = run_ranks([ListInbox(part, drop_after=after) for part, after in parts], max_num_seqs=2)
    check_in_step(ranks)
    assert len(ranks[0].answers) < len(ranks[0].inbox.wanted)
    if looks[1] is None:
        check_answers(ranks[1:])


def test_what_a_step_raises_ends_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    step = SteppedRunner.step

    def failing(self: SteppedRunner, chunks: Sequence[Chunk], agreed: Agreed | None = None) -> list[Sampled]:
        if len(self.steps) == 3:
            raise EngineError("no memory")
        return step(self, chunks, agreed)

    monkeypatch.setattr(SteppedRunner, "step", failing)
    with pytest.raises(EngineError, match="no memory"):
        run_ranks([ListInbox(part) for part in dealt(2)])


def test_counter_a_rank_that_skips_the_steps_of_others_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On real ranks the others would wait in their first collective for ever."""
    run = lockstep._Step.run
    monkeypatch.setattr(lockstep._Step, "run", lambda step, chunks: run(step, chunks) if chunks else [])
    ranks = run_ranks([ListInbox(requests()), ListInbox(requests()[:1])])
    with pytest.raises(AssertionError):
        check_in_step(ranks)
