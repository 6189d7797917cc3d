"""The scheduler over plain integers: what holds after every step, for every small budget, width and pool."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from support.fake_runner import FakeDecoder

from batchgen.engine.batch import Chunk
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.scheduler import Limits, Scheduler
from batchgen.engine.sequence import Sequence
from batchgen.engine.stop import StopChecker
from batchgen.records import Request, SamplingParams


def make(arrival: int, num_prompt: int, max_tokens: int) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    request = Request(f"row {arrival}", 0, 0, (1,) * num_prompt, params)
    return Sequence(request, arrival, StopChecker(params, frozenset(), FakeDecoder(True)))


@dataclass
class Harness:
    """A scheduler whose sequences (prompt tokens, output tokens) draw the token 1, and nothing else of an engine."""

    sizes: list[tuple[int, int]]
    max_num_seqs: int
    budget: int
    num_blocks: int
    block_size: int = 1
    cache_blocks: int = 0
    num_read: int = 0
    ahead: bool = False  # ask for a plan while a step runs
    planned: int = 0  # chunks that came as planned
    finished: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = BlockManager(self.num_blocks, self.block_size, self.cache_blocks)
        self.plan: list[tuple[int, int, int]] = []
        limits = Limits(self.max_num_seqs, self.budget, self.num_blocks, self.cache_blocks)
        self.scheduler = Scheduler(self._arrivals(), self.blocks, limits)

    def _arrivals(self) -> Iterator[Sequence]:
        for arrival, (num_prompt, max_tokens) in enumerate(self.sizes):
            self.num_read += 1
            yield make(arrival, num_prompt, max_tokens)

    def step(self) -> list[tuple[int, int, int]]:
        """One step, checked; its chunks as (arrival, start, stop)."""
        promised = [sequence for sequence in self.scheduler.running if sequence.num_planned]
        chunks = self.scheduler.schedule()
        self.check(chunks)
        given = [chunk for chunk in chunks if (chunk.sequence.arrival, chunk.start, chunk.stop) in self.plan]
        kept = [sequence for sequence in promised if sequence in self.scheduler.running]
        assert {chunk.sequence.arrival for chunk in given} >= {sequence.arrival for sequence in kept}
        self.planned += len(given)
        self.plan = []
        if self.ahead and chunks:
            self.plan = [(c.sequence.arrival, c.start, c.stop) for c in self.scheduler.plan(chunks)]
        for chunk in chunks:
            chunk.sequence.num_computed = chunk.stop
        for sequence in [chunk.sequence for chunk in chunks if chunk.samples]:
            sequence.append(1, 0.0, (), ())
            if sequence.num_output == sequence.request.params.max_tokens:
                self.scheduler.finish(sequence)
                self.finished.append(sequence.arrival)
        return [(chunk.sequence.arrival, chunk.start, chunk.stop) for chunk in chunks]

    def run(self) -> int:
        """Run to the end; the number of steps."""
        steps = 0
        while self.step():
            steps += 1
        assert sorted(self.finished) == list(range(len(self.sizes)))
        assert self.blocks.num_free == self.num_blocks
        return steps

    def check(self, chunks: list[Chunk]) -> None:
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        assert len(running) <= self.max_num_seqs
        assert sum(chunk.length for chunk in chunks) <= self.budget
        assert [chunk.sequence for chunk in chunks] == running[: len(chunks)], "one chunk each, earliest first"
        assert chunks or not running, "the earliest always advances"
        arrivals = [sequence.arrival for sequence in running + waiting]
        assert arrivals == sorted(arrivals), "what waits came later than what runs"
        for chunk in chunks:
            sequence = chunk.sequence
            assert chunk.length > 0
            assert chunk.start == sequence.num_computed
            assert chunk.samples == (chunk.stop == sequence.num_tokens)
            assert chunk.stop <= len(sequence.block_table) * self.block_size
        prefills = [not 0 < chunk.start == chunk.sequence.num_tokens - 1 for chunk in chunks]
        assert prefills == sorted(prefills) or self.cache_blocks, "decodes first"
        assert all(chunk.samples for chunk in chunks[:-1]), "only the last is cut"
        for sequence in waiting:
            assert (sequence.block_table, sequence.num_computed) == ([], 0)
        assert len(waiting) <= self.scheduler.num_preemptions + 1
        assert self.num_read == len(self.finished) + len(running) + len(waiting), "no request is lost, none read early"
        self.blocks.check_integrity([sequence.block_table for sequence in running])


SIZES = [(3, 4), (1, 1), (7, 2), (1, 8), (5, 5), (2, 3), (9, 1), (1, 9), (4, 4)]


@pytest.mark.parametrize("max_num_seqs", range(1, 10))
def test_every_budget_and_pool_finishes_everything(max_num_seqs: int) -> None:
    preemptions = 0
    for budget in range(1, 41):
        for block_size, num_blocks in ((1, 10), (1, 17), (2, 5), (3, 7), (4, 100)):
            harness = Harness(SIZES, max_num_seqs, budget, num_blocks, block_size)
            harness.run()
            preemptions += harness.scheduler.num_preemptions
            assert harness.scheduler.num_cached_tokens == 0
    assert (preemptions > 0) == (max_num_seqs > 1), "the small pools must force preemption"


@pytest.mark.parametrize("max_num_seqs", range(1, 10))
def test_every_budget_pool_and_cache_finishes_everything(max_num_seqs: int) -> None:
    """All tokens are the same here, so whatever is full is shared with everyone."""
    preemptions = 0
    for budget in range(1, 41):
        for block_size, num_blocks, cache_blocks in ((1, 10, 10), (1, 14, 1), (2, 5, 2), (3, 7, 1), (4, 100, 25)):
            harness = Harness(SIZES, max_num_seqs, budget, num_blocks, block_size, cache_blocks)
            harness.run()
            preemptions += harness.scheduler.num_preemptions
            assert harness.scheduler.num_cached_tokens > 0
    assert (preemptions > 0) == (max_num_seqs > 1), "the small pools must force preemption"


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 9])
def test_every_budget_and_pool_finishes_everything_with_plans(max_num_seqs: int) -> None:
    planned = 0
    for budget in (1, 2, 3, 5, 8, 20):
        for num_blocks in range(12, 40, 3):
            harness = Harness(SIZES, max_num_seqs, budget, num_blocks, cache_blocks=num_blocks % 2 * 4, ahead=True)
            harness.run()
            assert sorted(harness.finished) == list(range(len(SIZES)))
            planned += harness.planned
    assert planned > 100


def test_what_is_planned_is_the_rest_of_a_prefill_and_newcomers() -> None:
    harness = Harness([(3, 2), (9, 1), (2, 1)], max_num_seqs=3, budget=6, num_blocks=40, ahead=True)
    assert harness.step() == [(0, 0, 3), (1, 0, 3)]
    assert harness.plan == [(1, 3, 8)], "beside one token of the first"
    assert harness.step() == [(0, 3, 4), (1, 3, 8)]
    assert harness.plan == [(1, 8, 9), (2, 0, 2)], "though the first ends"
    assert harness.step() == [(1, 8, 9), (2, 0, 2)]
    assert harness.step() == []


def test_no_preemption_when_everything_fits() -> None:
    harness = Harness(SIZES, max_num_seqs=9, budget=40, num_blocks=200)
    harness.run()
    assert harness.scheduler.num_preemptions == 0


def test_prefill_is_cut_by_the_budget_and_runs_beside_decodes() -> None:
    harness = Harness([(2, 4), (7, 2)], max_num_seqs=4, budget=4, num_blocks=100)
    assert harness.step() == [(0, 0, 2), (1, 0, 2)]
    assert harness.step() == [(0, 2, 3), (1, 2, 5)]
    assert harness.step() == [(0, 3, 4), (1, 5, 7)]
    assert harness.step() == [(0, 4, 5), (1, 7, 8)]
    assert harness.step() == []


def test_a_step_never_waits_for_a_batch_to_drain() -> None:
    """Continuous batching: the third starts in the step after the first ends."""
    harness = Harness([(1, 1), (1, 9), (1, 1)], max_num_seqs=2, budget=10, num_blocks=100)
    assert harness.step() == [(0, 0, 1), (1, 0, 1)]
    assert harness.step() == [(1, 1, 2), (2, 0, 1)]


def test_requests_are_read_only_when_there_is_room() -> None:
    harness = Harness([(2, 5)] * 100, max_num_seqs=3, budget=100, num_blocks=100)
    harness.step()
    assert harness.num_read == 3
    harness = Harness([(2, 5)] * 100, max_num_seqs=50, budget=4, num_blocks=100)
    harness.step()
    assert harness.num_read == 2


def test_the_latest_is_preempted_and_recomputes_prompt_and_output_in_one_prefill() -> None:
    harness = Harness([(2, 5), (2, 3)], max_num_seqs=2, budget=10, num_blocks=7)
    assert harness.step() == [(0, 0, 2), (1, 0, 2)]
    assert harness.step() == [(0, 2, 3), (1, 2, 3)]
    assert harness.step() == [(0, 3, 4)]  # takes the last block; the other waits with what it has
    assert harness.scheduler.num_preemptions == 0
    assert harness.step() == [(0, 4, 5)]  # takes a block from the other, which has two tokens of output
    assert harness.scheduler.num_preemptions == 1
    assert harness.step() == [(0, 5, 6)]
    assert harness.finished == [0]
    assert harness.step() == [(1, 0, 4)]
    assert harness.finished == [0, 1]


def test_a_newcomer_leaves_a_free_block_for_each_that_runs() -> None:
    assert len(Harness([(2, 5), (3, 5)], 2, 10, num_blocks=6).step()) == 2
    assert len(Harness([(2, 6), (4, 1)], 2, 10, num_blocks=6).step()) == 1


def test_samples_of_one_prompt_that_arrive_together_compute_it_once() -> None:
    harness = Harness([(10, 2)] * 3, max_num_seqs=3, budget=100, num_blocks=100, block_size=4, cache_blocks=1)
    assert harness.step() == [(0, 0, 10), (1, 8, 10), (2, 8, 10)]
    assert harness.scheduler.num_cached_tokens == 16
    tables = [sequence.block_table for sequence in harness.scheduler.running]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    assert harness.step() == [(0, 10, 11), (1, 10, 11), (2, 10, 11)]


def test_a_prompt_that_is_cached_whole_computes_its_last_block_again() -> None:
    harness = Harness([(8, 1)] * 2, max_num_seqs=1, budget=100, num_blocks=100, block_size=4, cache_blocks=9)
    assert harness.step() == [(0, 0, 8)]
    assert harness.step() == [(1, 4, 8)]


def test_a_chunk_shares_no_more_than_it_has_completed() -> None:
    harness = Harness([(10, 2), (10, 2)], max_num_seqs=2, budget=7, num_blocks=100, block_size=4, cache_blocks=1)
    assert harness.step() == [(0, 0, 7)]
    assert harness.step() == [(0, 7, 10), (1, 8, 10)]


def test_outputs_are_shared_like_prompts() -> None:
    harness = Harness([(3, 6), (12, 1)], max_num_seqs=1, budget=100, num_blocks=100, block_size=4, cache_blocks=9)
    while harness.finished != [0]:
        harness.step()
    assert harness.step() == [(1, 8, 12)], "the output's last token was drawn and never computed"


def test_the_preempted_find_their_own_blocks_again() -> None:
    harness = Harness([(1, 9), (9, 2)], max_num_seqs=2, budget=100, num_blocks=15, block_size=1, cache_blocks=15)
    assert harness.step() == [(0, 0, 1), (1, 1, 9)]
    harness.scheduler._preempt()
    assert harness.step() == [(0, 1, 2), (1, 9, 10)]
    harness.run()


def test_a_newcomer_needs_room_only_for_what_it_does_not_share() -> None:
    def steps(second: int) -> int:
        sizes = [(6, 4), (second, 1)]
        return len(Harness(sizes, 2, budget=20, num_blocks=8, cache_blocks=8).step())

    assert steps(second=7) == 2, "6 blocks of the first, 1 of the second, 1 left for the first to grow"
    assert steps(second=8) == 1


def test_release_frees_every_block() -> None:
    harness = Harness(SIZES, max_num_seqs=5, budget=7, num_blocks=12)
    for _ in range(3):
        harness.step()
    assert harness.blocks.num_free < 12
    harness.scheduler.release()
    assert harness.blocks.num_free == 12
    harness.blocks.check_integrity(())


def test_two_runs_make_the_same_steps() -> None:
    first, second = (Harness(SIZES, max_num_seqs=4, budget=5, num_blocks=12) for _ in range(2))
    while step := first.step():
        assert step == second.step()


def test_the_checks_see_a_scheduler_that_forgets_to_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    def preempt(self: Scheduler) -> None:
        sequence = self.running.pop()
        self._blocks.free(sequence.block_table)
        self.waiting.appendleft(sequence)

    monkeypatch.setattr(Scheduler, "_preempt", preempt)
    with pytest.raises(AssertionError):
        Harness(SIZES, max_num_seqs=9, budget=20, num_blocks=12).run()


def test_the_checks_see_a_scheduler_that_preempts_the_earliest(monkeypatch: pytest.MonkeyPatch) -> None:
    def preempt(self: Scheduler) -> None:
        self.running.append(self.running.pop(0))
        original(self)

    original = Scheduler._preempt
    monkeypatch.setattr(Scheduler, "_preempt", preempt)
    with pytest.raises(AssertionError):
        Harness(SIZES, max_num_seqs=9, budget=20, num_blocks=12).run()
