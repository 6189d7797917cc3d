"""Preemption by recomputation, in pools so small that most sequences lose their blocks. Guards against tokens drawn
twice, stale blocks, and a recomputed prefill that is not the decode it replaces (vLLM PR #52522).
"""

import pytest
from support.model_cases import MAX_MODEL_LEN, assert_same, generate, long_requests, make_engine

from batchgen.engine.engine import Engine
from batchgen.engine.scheduler import Scheduler
from batchgen.loader import LoadedModel

SMALLEST = MAX_MODEL_LEN // 32  # blocks of one sequence of full length


@pytest.fixture(scope="module")
def undisturbed(model: LoadedModel) -> dict[str, str]:
    return generate(make_engine(model, max_num_seqs=1), long_requests())


def crowded(model: LoadedModel, num_blocks: int) -> Engine:
    return make_engine(model, max_num_seqs=8, max_num_batched_tokens=48, num_blocks=num_blocks)


@pytest.mark.parametrize("num_blocks", range(SMALLEST, SMALLEST + 12))
def test_every_small_pool(model: LoadedModel, undisturbed: dict[str, str], num_blocks: int) -> None:
    engine = crowded(model, num_blocks)
    assert_same(generate(engine, long_requests()), undisturbed, f"{num_blocks} blocks")
    assert engine.stats.preemptions > 0, "a pool that preempts nobody shows nothing"


def test_counter_a_wrong_recomputation_is_caught(
    model: LoadedModel, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted sequence that comes back with another first token."""
    right = Scheduler._preempt

    def forgetful(self: Scheduler) -> None:
        victim = self.running[-1]
        right(self)
        victim.token_ids[0] += 1

    monkeypatch.setattr(Scheduler, "_preempt", forgetful)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(generate(crowded(model, SMALLEST), long_requests()), undisturbed, "wrong token")
