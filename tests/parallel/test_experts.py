"""Experts that move on one rank: what a slot holds is always what its placement says, and time is kept."""

import pytest
import torch
from support.bitwise import assert_bitwise
from support.ranks_exchange import LAYERS, Case, Shuffled, exchanged, expected, weights_of

from batchgen.errors import EngineError
from batchgen.parallel.eplb import Load, moves
from batchgen.parallel.exchange import LocalExchange
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.placement import Placement

ALONE = Mesh.alone(torch.device("cpu"))


def test_alone_every_expert_is_in_its_own_slot() -> None:
    alone = ExpertParallel.alone(6)
    exchange = alone.exchange(11)
    assert isinstance(exchange, LocalExchange)
    assert alone.exchange(11) is exchange is alone.exchange(11, padded=True)
    assert alone.slots(11) == (0, 1, 2, 3, 4, 5)
    ids = torch.tensor([[5, 2]], dtype=torch.int32)
    assert alone.exchange(3).dispatch(torch.zeros(1, 2), ids).pairs.slots.tolist() == [5, 2]
    for _ in range(3):
        alone.end_of_step({})
    assert alone.moved == 0


class Rotated(Shuffled):
    """Each expert goes to the next slot: every source is a target too."""

    def again(self, load: Load, now: Placement) -> Placement:
        return Placement(now.num_experts, (*now.slots[1:], now.slots[0]), now.size)


def test_a_slot_is_read_before_it_is_overwritten() -> None:
    parallel = ExpertParallel(ALONE, 5, LAYERS, interval=1, policy=Rotated(None))
    weights = {layer: weights_of(parallel.slots(layer), layer, 6) for layer in LAYERS}
    where = [tensor.data_ptr() for pair in weights.values() for tensor in pair]
    for step in range(1, 4):
        parallel.end_of_step(weights)
        assert parallel.slots(1) == tuple((i + step) % 5 for i in range(5))
        for layer in LAYERS:
            for held, wanted in zip(weights[layer], weights_of(parallel.slots(layer), layer, 6), strict=True):
                assert_bitwise(held, wanted)
    assert parallel.moved == 3 * 5 * len(LAYERS)
    assert [tensor.data_ptr() for pair in weights.values() for tensor in pair] == where


def test_counter_copying_one_by_one_would_lose_an_expert() -> None:
    old, new = Placement(3, (0, 1, 2), 1), Placement(3, (1, 0, 2), 1)
    slots = list(old.slots)
    for move in moves(old, new):
        slots[move.target] = slots[move.source]
    assert slots == [1, 1, 2]


@pytest.mark.parametrize(("interval", "moved_after"), [(1, [1, 2, 3, 4]), (2, [0, 1, 1, 2]), (0, [0, 0, 0, 0])])
def test_the_interval_is_kept(interval: int, moved_after: list[int]) -> None:
    parallel = ExpertParallel(ALONE, 5, (0,), interval=interval, policy=Rotated(None))
    seen = []
    for _ in range(4):
        parallel.end_of_step({0: (torch.zeros(5, 1),)})
        seen.append(parallel.moved // 5)
    assert seen == moved_after


@pytest.mark.parametrize("interval", [0, 1, 3])
def test_the_bytes_of_one_rank_do_not_follow_its_slots(interval: int) -> None:
    case = Case((20,), redundant=4, shuffle=9, steps=6, interval=interval)
    found, moved = exchanged(ALONE, case)
    assert (moved > 0) == (interval > 0)
    for answers, wanted in zip(found, expected(case), strict=True):
        assert_bitwise(answers, wanted.view(torch.uint8).numpy())


def test_tables_stay_in_place() -> None:
    """A CUDA graph reads them where they were when it was captured."""
    parallel = ExpertParallel(ALONE, 5, (0,), interval=1, policy=Rotated(None))
    exchange, ids = parallel.exchange(0), torch.tensor([[3]], dtype=torch.int32)
    before = exchange.dispatch(torch.zeros(1, 2), ids).pairs.slots.tolist()
    parallel.end_of_step({0: ()})
    assert parallel.exchange(0) is exchange
    after = exchange.dispatch(torch.zeros(1, 2), ids).pairs.slots.tolist()
    assert (before, after) == ([3], [2])


class TooMany(Shuffled):
    """A faulty policy."""

    def again(self, load: Load, now: Placement) -> Placement:
        return Placement(now.num_experts, (*now.slots, 0), now.size)


def test_a_placement_with_other_slots_is_refused() -> None:
    parallel = ExpertParallel(ALONE, 5, (0,), interval=1, policy=TooMany(None))
    with pytest.raises(EngineError, match="another number of slots"):
        parallel.end_of_step({0: (torch.zeros(5, 1),)})


@pytest.mark.parametrize("stacked", [torch.zeros(4, 2), torch.zeros(2, 5).T])
def test_tensors_that_are_no_slots_are_refused(stacked: torch.Tensor) -> None:
    parallel = ExpertParallel(ALONE, 5, (0,), interval=1, policy=Rotated(None))
    with pytest.raises(EngineError, match="5 slots, contiguous"):
        parallel.end_of_step({0: (stacked,)})
