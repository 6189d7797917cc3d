"""Preemption by recomputation: in pools so small that most sequences lose their blocks, and of every sequence at every
step of a small run. Guards against tokens drawn twice, stale blocks, and a recomputed prefill that is not the decode it
replaces (vLLM PR #52522).
"""

from collections.abc import Mapping

import pytest
from support.model_cases import (
    MAX_MODEL_LEN,
    PARAMS,
    ask,
    assert_same,
    generate,
    ids,
    long_requests,
    with_limits,
)

from batchgen.engine.batch import Chunk
from batchgen.engine.engine import Engine
from batchgen.engine.scheduler import Scheduler

SMALLEST = MAX_MODEL_LEN // 32  # blocks of one sequence of full length
# Five sequences, four at a time: prompts around a block's edge, outputs that cross it, every step has several running.
SMALL_RUN = [ask(f"small-{i}", ids(length, i), PARAMS[i]) for i, length in enumerate((29, 3, 33, 30, 9))]


@pytest.fixture(scope="module")
def undisturbed(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1, prefix_cache_blocks=0), [*long_requests(), *SMALL_RUN])


def crowded(engine: Engine, num_blocks: int) -> Engine:
    """Nothing is shared here: whoever finds its own blocks again recomputes next to nothing."""
    return with_limits(engine, max_num_seqs=8, max_num_batched_tokens=48, num_blocks=num_blocks, prefix_cache_blocks=0)


@pytest.mark.parametrize("num_blocks", range(SMALLEST, SMALLEST + 12))
def test_every_small_pool(engine: Engine, undisturbed: dict[str, str], num_blocks: int) -> None:
    small = crowded(engine, num_blocks)
    assert_same(generate(small, long_requests()), undisturbed, f"{num_blocks} blocks")
    assert small.stats.preemptions > 0, "a pool that preempts nobody shows nothing"


class Forced:
    """Preempts by a plan: before step s, everyone from place `at[s]` among the running ones on, latest first."""

    def __init__(self, patch: pytest.MonkeyPatch, at: Mapping[int, int]) -> None:
        self.widths: list[int] = []  # how many were running before each step
        self.hits = 0
        right = Scheduler.schedule

        def schedule(scheduler: Scheduler) -> list[Chunk]:
            keep = at.get(len(self.widths), len(scheduler.running))
            self.widths.append(len(scheduler.running))
            while len(scheduler.running) > keep:
                scheduler._preempt()
                self.hits += 1
            return right(scheduler)

        patch.setattr(Scheduler, "schedule", schedule)


def preempted(engine: Engine, at: Mapping[int, int], kept: int = 0) -> tuple[dict[str, str], Forced]:
    with pytest.MonkeyPatch.context() as patch:
        forced = Forced(patch, at)
        small = with_limits(engine, max_num_seqs=4, max_num_batched_tokens=21, prefix_cache_blocks=kept)
        return generate(small, SMALL_RUN), forced


@pytest.mark.parametrize("kept", [0, 100])
def test_every_sequence_at_every_step(engine: Engine, undisturbed: dict[str, str], kept: int) -> None:
    """Step by step, the latest, the last two, ..., all: within prefills, at the first token, at block edges.

    All is recomputed, or all but what the prefix cache kept.
    """
    answers, calm = preempted(engine, {}, kept)
    assert_same(answers, undisturbed, "nobody preempted")
    assert len(calm.widths) > 15
    assert max(calm.widths) == 4
    for step, width in enumerate(calm.widths):
        for place in range(width):
            answers, forced = preempted(engine, {step: place}, kept)
            assert_same(answers, undisturbed, f"from place {place} on, before step {step}")
            assert forced.hits == width - place


def test_again_while_it_is_computed_again(engine: Engine, undisturbed: dict[str, str]) -> None:
    """The same sequences lose their blocks a second time, at each of the steps that recompute them, and every time."""
    _, calm = preempted(engine, {})
    for step, width in enumerate(calm.widths):
        for later in (1, 2, 3, 4):
            answers, forced = preempted(engine, {step: 0, step + later: 0})
            assert_same(answers, undisturbed, f"all before step {step}, and {later} later")
            assert forced.hits == width + sum(forced.widths[step + later : step + later + 1])
    answers, forced = preempted(engine, dict.fromkeys(range(0, 1000, 3), 1))
    assert_same(answers, undisturbed, "all but the earliest at every third step")
    assert forced.hits > 8


def test_counter_a_wrong_recomputation_is_caught(
    engine: Engine, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted sequence that comes back with another first token."""
    right = Scheduler._preempt

    def forgetful(self: Scheduler) -> None:
        victim = self.running[-1]
        right(self)
        victim.token_ids[0] += 1

    monkeypatch.setattr(Scheduler, "_preempt", forgetful)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(generate(crowded(engine, SMALLEST), long_requests()), undisturbed, "wrong token")
    with pytest.raises(AssertionError, match="differs"):
        assert_same(preempted(engine, {9: 1})[0], undisturbed, "wrong token")
