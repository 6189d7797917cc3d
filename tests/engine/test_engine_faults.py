"""The counter-test of test_engine.py: each fault, put in on purpose, changes an output or trips a check."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.engine_cases import expected, generate, make_engine, requests
from support.fake_runner import FakeRunner, PoisoningBlocks

from batchgen.engine.batch import Chunk
from batchgen.engine.scheduler import Scheduler
from batchgen.errors import EngineError
from batchgen.records import Completion

Fault = Callable[[pytest.MonkeyPatch], None]


def shared_block(patch: pytest.MonkeyPatch) -> None:
    def grow(self: PoisoningBlocks, table: list[int], num_positions: int) -> bool:
        grown = original(self, table, num_positions)
        if len(table) > 2:
            table[2] = table[0]
        return grown

    original = PoisoningBlocks.grow
    patch.setattr(PoisoningBlocks, "grow", grow)


def blocks_in_another_order(patch: pytest.MonkeyPatch) -> None:
    def grow(self: PoisoningBlocks, table: list[int], num_positions: int) -> bool:
        before = len(table)
        grown = original(self, table, num_positions)
        if before and len(table) > before:
            table.reverse()
        return grown

    original = PoisoningBlocks.grow
    patch.setattr(PoisoningBlocks, "grow", grow)


def table_kept_after_freeing(patch: pytest.MonkeyPatch) -> None:
    original = PoisoningBlocks.free
    patch.setattr(PoisoningBlocks, "free", lambda self, table: original(self, list(table)))


def blocks_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoisoningBlocks, "free", lambda self, table: table.clear())


def no_recomputation(patch: pytest.MonkeyPatch) -> None:
    def admit(self: Scheduler) -> bool:
        admitted = original(self)
        if admitted and self.running[-1].num_output:
            self.running[-1].num_computed = self.running[-1].num_tokens - 1
        return admitted

    original = Scheduler._admit
    patch.setattr(Scheduler, "_admit", admit)


def output_drawn_again(patch: pytest.MonkeyPatch) -> None:
    def preempt(self: Scheduler) -> None:
        original(self)
        del self.waiting[0].token_ids[-1]

    original = Scheduler._preempt
    patch.setattr(Scheduler, "_preempt", preempt)


def counts_lost(patch: pytest.MonkeyPatch) -> None:
    def preempt(self: Scheduler) -> None:
        original(self)
        self.waiting[0].output_counts.clear()

    original = Scheduler._preempt
    patch.setattr(Scheduler, "_preempt", preempt)


def draws_given_to_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    original = FakeRunner.step
    patch.setattr(FakeRunner, "step", lambda self, chunks: original(self, chunks)[::-1])


def prefill_skips_a_position(patch: pytest.MonkeyPatch) -> None:
    def schedule(self: Scheduler) -> list[Chunk]:
        chunks = original(self)
        return [replace(c, start=c.start + 1, length=c.length - 1) if c.length > 1 else c for c in chunks]

    original = Scheduler.schedule
    patch.setattr(Scheduler, "schedule", schedule)


def no_fault(patch: pytest.MonkeyPatch) -> None:
    pass


def outputs_under(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Completion]:
    fault(patch)
    engine = make_engine(max_num_seqs=9, budget=9, num_blocks=13)
    completions = generate(engine)
    assert engine.stats.preemptions > 0
    return completions


def test_a_lost_block_is_an_error_when_the_last_request_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_not_given_back(monkeypatch)
    with pytest.raises(EngineError, match=r"lost \[\d"):
        list(make_engine(num_blocks=1000).generate(requests()))


def test_without_a_fault_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outputs_under(no_fault, monkeypatch) == expected()


@pytest.mark.parametrize(
    "fault",
    [
        shared_block,
        blocks_in_another_order,
        table_kept_after_freeing,
        blocks_not_given_back,
        no_recomputation,
        output_drawn_again,
        counts_lost,
        draws_given_to_the_neighbour,
        prefill_skips_a_position,
    ],
)
def test_a_fault_is_seen(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((AssertionError, EngineError, IndexError)):
        assert outputs_under(fault, monkeypatch) == expected()
