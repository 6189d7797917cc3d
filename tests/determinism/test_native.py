"""The axes again on profile native-amx/1, whose linears take a path of their own."""

from typing import Any

import pytest
from support.model_cases import assert_same, generate, long_requests, make_engine, requests

from batchgen.engine.engine import Engine
from batchgen.kernels.cpu.native import library
from batchgen.loader import LoadedModel

pytestmark = pytest.mark.skipif(not library().has_amx(), reason="this processor has no AMX")


def native(model: LoadedModel, **how: Any) -> Engine:
    return make_engine(model, numerics="native-amx/1", **how)


@pytest.fixture(scope="module")
def lone(model: LoadedModel) -> dict[str, str]:
    return generate(native(model, max_num_seqs=1), requests())


@pytest.mark.parametrize("size", range(1, 65))
def test_every_batch_size(model: LoadedModel, lone: dict[str, str], size: int) -> None:
    batch = [requests()[(size * 5 + i) % 64] for i in range(size)]
    assert_same(generate(native(model, max_num_seqs=size), batch), lone, f"batch of {size}")


@pytest.mark.parametrize("budget", [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 64, 1000])
def test_token_budgets(model: LoadedModel, lone: dict[str, str], budget: int) -> None:
    wanted = requests(14)
    assert_same(generate(native(model, max_num_seqs=8, max_num_batched_tokens=budget), wanted), lone, f"{budget}")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_and_order(model: LoadedModel, lone: dict[str, str], threads: int) -> None:
    assert_same(generate(native(model, threads=threads), requests()[::-1]), lone, f"{threads} threads")


def test_preemption(model: LoadedModel) -> None:
    undisturbed = generate(native(model, max_num_seqs=1), long_requests())
    for num_blocks in (5, 6, 9):
        engine = native(model, max_num_seqs=8, max_num_batched_tokens=48, num_blocks=num_blocks)
        assert_same(generate(engine, long_requests()), undisturbed, f"{num_blocks} blocks")
        assert engine.stats.preemptions > 0


def test_it_is_a_profile_of_its_own(model: LoadedModel, lone: dict[str, str], alone: dict[str, str]) -> None:
    """Equal bits would mean that the matrix unit was never used."""
    assert lone != alone
