"""Ranks meet, hear each other, and notice who is missing, dead or silent, without hanging."""

import pytest
import torch
from support.ranks import Ranks
from support.ranks_faults import (
    loads,
    meet_with_patience,
    nothing_to_gather,
    numbers,
    one_dies,
    one_has_no_gpu,
    one_is_slow,
    they_disagree,
)

from batchgen.errors import EngineError
from batchgen.parallel.meeting import free_address
from batchgen.parallel.mesh import Mesh

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_rank_hears_all_numbers(ranks: Ranks, size: int) -> None:
    assert ranks.run(size, numbers) == [[[rank, 2**62 + rank] for rank in range(size)]] * size


def test_no_numbers(ranks: Ranks) -> None:
    assert ranks.run(2, nothing_to_gather) == [(2, 0)] * 2


def test_alone_nothing_is_sent() -> None:
    mesh = Mesh.alone(CPU)
    x = torch.arange(6).view(3, 2)
    assert mesh.all_to_all(x, [3], [3]) is x
    assert mesh.gather_ints([4, 5]).tolist() == [[4, 5]]
    mesh.close()


def test_one_rank_needs_no_address() -> None:
    assert Mesh.join(0, 1, "", CPU).size == 1


def test_a_missing_rank_is_named(ranks: Ranks) -> None:
    address = free_address()
    said = ranks.run(4, meet_with_patience, 6, address, (1, 2))
    missing = "ranks 1, 2, 4, 5 of 6 did not come in time"
    assert [missing in text for text in said] == [True, False, False, True], said
    assert said[1] == ""


def test_an_obstacle_of_one_rank_is_told_on_all(ranks: Ranks) -> None:
    for message, seconds in ranks.run(3, one_has_no_gpu, free_address()):
        assert message.startswith("rank 1 cannot take part: ")
        assert seconds < 10  # of the 60 that they would wait for one that says nothing


def test_the_dead_are_noticed_at_once() -> None:
    with Ranks(3) as few:
        outcomes = few.outcomes(3, one_dies)
    assert outcomes[1] == (False, "the process has ended")
    for rank in (0, 2):
        well, (message, seconds) = outcomes[rank]
        assert well
        assert f"rank {rank} of 3 lost the others" in message
        assert seconds < 5


def test_silence_has_an_end(ranks: Ranks) -> None:
    said = ranks.run(2, one_is_slow, free_address())
    assert "rank 0 of 2 lost the others" in said[0]


def test_ranks_that_would_move_different_experts_are_stopped(ranks: Ranks) -> None:
    assert all("the ranks would move different experts" in text for text in ranks.run(3, they_disagree))


def test_loads_are_summed_over_the_ranks_and_copies(ranks: Ranks) -> None:
    """Expert 0 and 1 have two copies each; the load is that of the expert, and -1 counts for nobody."""
    ids = [[[0, 1], [0, 3], [0, -1]], [], [[1, 3]]]
    for load, slots in ranks.run(3, loads, ids):
        assert load == [3, 2, 0, 2]
        assert slots == (0, 1, 2, 3, 0, 1)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be(rank: int, size: int) -> None:
    with pytest.raises(EngineError, match="there is no rank"):
        Mesh.join(rank, size, free_address(), CPU)
