"""The order of the requests. Guards against seeds and caches that hang on a position (verl #3126, AReaL #1523)."""

import random
from dataclasses import replace

import pytest
from support.model_cases import assert_same, generate, requests, with_limits

from batchgen.engine.engine import Engine
from batchgen.records import Request


@pytest.mark.parametrize("shuffle", ["reversed", *range(6)])
def test_any_order(engine: Engine, alone: dict[str, str], shuffle: str | int) -> None:
    wanted = list(requests())
    if shuffle == "reversed":
        wanted.reverse()
    else:
        random.Random(shuffle).shuffle(wanted)
    assert_same(generate(with_limits(engine, max_num_seqs=9), wanted), alone, f"order {shuffle}")


def test_one_engine_twice(engine: Engine, alone: dict[str, str]) -> None:
    """What an engine did before cannot be seen: used blocks hold other sequences' keys and values."""
    used = with_limits(engine, max_num_seqs=5, num_blocks=40)
    for wanted in (requests(), tuple(reversed(requests())), requests(20)):
        assert_same(generate(used, wanted), alone, "a used engine")


def test_counter_seeds_by_arrival_are_caught(engine: Engine, alone: dict[str, str]) -> None:
    def by_arrival(wanted: list[Request]) -> list[Request]:
        return [replace(request, seed=i) for i, request in enumerate(wanted)]

    forward = generate(engine, by_arrival(list(requests(16))))
    backward = generate(engine, by_arrival(list(reversed(requests(16)))))
    with pytest.raises(AssertionError, match="differs"):
        assert_same(backward, forward, "reversed")
