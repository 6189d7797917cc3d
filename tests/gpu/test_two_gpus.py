"""Two GPUs over NCCL: what comes back from the experts is what one rank gives, to the byte; in CUDA graphs too."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.bitwise import assert_bitwise
from support.on_gpu import GPU
from support.ranks import Ranks
from support.ranks_exchange import Case, exchanged, expected
from support.ranks_faults import numbers
from support.ranks_graph import replayed

TWO = torch.cuda.device_count() >= 2 and dist.is_available() and dist.is_nccl_available()
pytestmark = [*GPU, pytest.mark.skipif(not TWO, reason="there are no two GPUs with NCCL")]

SPREADS = [(50, 1), (0, 51), (26, 25), (51, 0)]
WORK = {"exact": exchanged, "padded": exchanged, "graph": replayed}


@pytest.fixture(scope="module")
def gpus() -> Iterator[Ranks]:
    with Ranks(2, on_gpus=True) as started:
        yield started


def check(gpus: Ranks, case: Case, work: Callable[..., Any]) -> int:
    """The answers of both ranks against those of one rank on the CPU; how many slots were moved."""
    (first, moved), (second, _) = gpus.run(2, work, case)
    for step, wanted in enumerate(expected(case)):
        found = np.concatenate([first[step], second[step]])
        assert_bitwise(found, wanted.view(torch.uint8).numpy(), f"{case}, {step}")
    return int(moved)


@pytest.mark.parametrize("how", WORK)
@pytest.mark.parametrize("spread", SPREADS)
def test_two_ranks_give_the_bytes_of_one(gpus: Ranks, how: str, spread: tuple[int, ...]) -> None:
    case = Case(spread, padded=how != "exact", hidden=256, k=8, experts=32)
    check(gpus, case, WORK[how])
    check(gpus, replace(case, dtype=torch.bfloat16, shuffle=5, redundant=8), WORK[how])


@pytest.mark.parametrize("how", WORK)
@pytest.mark.parametrize("redundant", [0, 1, 8])
def test_moves(gpus: Ranks, how: str, redundant: int) -> None:
    """A captured graph goes on with the experts where they are now."""
    case = Case((20, 31), padded=how != "exact", redundant=redundant, shuffle=3, steps=6, interval=2)
    assert check(gpus, case, WORK[how]) > 10


def test_counter_moves_without_the_weights(gpus: Ranks) -> None:
    case = Case((20, 31), shuffle=3, steps=3, interval=1, forget_moves=True)
    with pytest.raises(AssertionError, match="elements differ"):
        check(gpus, case, exchanged)


def test_control_numbers_go_over_the_cpu(gpus: Ranks) -> None:
    assert gpus.run(2, numbers) == [[[rank, 2**62 + rank] for rank in range(2)]] * 2


def test_more_ranks_than_gpus_are_refused() -> None:
    there = torch.cuda.device_count()
    with Ranks(there + 1, on_gpus=True) as too_many:
        outcomes = too_many.outcomes(there + 1, numbers)
    message = f"rank {there} cannot take part: {there + 1} ranks need a GPU each, and this machine shows {there}"
    assert all(not well and message in said for well, said in outcomes)
