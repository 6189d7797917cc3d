"""Experts over ranks: their number, where each expert lies and how often, when they move, who got which request.

Guards against sums that follow the layout (vLLM's combine at eight ranks did until lately, and is fixed for one layout
only), replicas of experts that are added twice (SGLang PR #32962), and ranks that fall out of
step. Real processes, and bits of ids and logprobs against one engine with one sequence at a time.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.model_cases import assert_same, generate, load_tiny, make_engine, with_limits
from support.rank_engines import COUNT, Case, Outcome, answer, asked
from support.ranks import Ranks

FAMILIES = ("qwen3_moe", "dots1")
FEW = 16  # requests of most cases
LONG = range(COUNT, COUNT + 4)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(8) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, str]]:
    """For each family, what each request gives when it has one engine to itself."""
    found = {}
    for family in FAMILIES:
        engine = with_limits(make_engine(load_tiny(folder, family)), max_num_seqs=1, prefix_cache_blocks=0)
        found[family] = generate(engine, asked())
    return found


@pytest.fixture
def check(ranks: Ranks, folder: Path, alone: dict[str, dict[str, str]]) -> Any:
    def run(size: int, parts: Any = None, family: str = "qwen3_moe", **how: Any) -> list[Outcome]:
        parts, expected = parts or dealt(size), how.pop("expected", alone[family])
        found = ranks.run(size, answer, Case(folder / family, parts, **how))
        answers = {key: bits for outcome in found for key, bits in outcome.answers.items()}
        assert len(answers) == sum(map(len, parts))
        assert_same(answers, expected, f"{family} on {size} ranks, {how}")
        assert len({outcome.stats.steps + outcome.stats.idle_steps for outcome in found}) == 1
        return found

    return run


def dealt(size: int, count: int = FEW) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(rank, count, size)) for rank in range(size))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_any_number_of_ranks(check: Any, family: str, size: int) -> None:
    """Twelve experts: three ranks hold four each, eight hold one or two."""
    check(size, dealt(size, COUNT if size == 8 else FEW), family)


@pytest.mark.parametrize(("size", "order"), [(2, 1), (3, 2), (4, 3), (8, 4)])
def test_experts_that_lie_elsewhere(check: Any, size: int, order: int) -> None:
    check(size, order=order)


@pytest.mark.parametrize("redundant", [1, 8])
@pytest.mark.parametrize(("size", "order"), [(3, None), (8, 5)])
def test_experts_that_lie_twice(check: Any, size: int, order: int | None, redundant: int) -> None:
    check(size, redundant=redundant, order=order)


@pytest.mark.parametrize("interval", [1, 7, 30])
@pytest.mark.parametrize(("redundant", "order"), [(0, 6), (1, None), (8, 7)])
def test_experts_that_move(check: Any, interval: int, redundant: int, order: int | None) -> None:
    found = check(4, redundant=redundant, order=order, interval=interval, limits={"max_num_seqs": 1})
    assert found[0].stats.steps + found[0].stats.idle_steps >= 30
    assert (found[0].moved > 0) or order is None, "where the load decides, all may be well as it is"


def test_experts_that_move_where_they_are(check: Any) -> None:
    """One rank, which holds all."""
    assert check(1, redundant=2, order=8, interval=2)[0].moved > 0


@pytest.mark.parametrize("seed", range(4))
def test_any_spread_of_the_requests(check: Any, seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice([2, 3, 4])
    parts: list[list[int]] = [[] for _ in range(size)]
    for i in chance.sample(range(COUNT), FEW):
        chance.choice(parts).append(i)
    limits = {"max_num_seqs": chance.choice([1, 3, 16]), "max_num_batched_tokens": chance.choice([9, 33, 128])}
    check(size, tuple(map(tuple, parts)), limits=limits, gaps=tuple((chance.randrange(3), 0) for _ in parts))


def test_uneven_work(check: Any) -> None:
    """One row, none, and fifty, which are fifty at once."""
    parts = ((3,), (), tuple(i for i in range(COUNT) if i != 3))
    found = check(3, parts, limits={"max_num_seqs": 64, "max_num_batched_tokens": 4096, "num_blocks": 300})
    assert found[1].stats.steps == 0
    assert found[1].stats.idle_steps == found[2].stats.steps


@pytest.fixture(scope="module")
def routed(folder: Path) -> dict[str, str]:
    engine = with_limits(make_engine(load_tiny(folder, "qwen3_moe")), max_num_seqs=1, prefix_cache_blocks=0)
    return generate(engine, [asked(routed=True)[i] for i in (*range(8), *LONG)])


def test_which_experts_tokens_went_to(check: Any, routed: dict[str, str]) -> None:
    """Logical ones, wherever they lie and while they move; in cuts, and on one rank with preemptions."""
    first, *others = dealt(2, 8)
    limits = {"num_blocks": 6, "prefix_cache_blocks": 3, "max_num_batched_tokens": 20}
    how = {"redundant": 3, "order": 3, "interval": 5, "limits": limits}
    found = check(2, ((*first, *LONG), *others), expected=routed, routed=True, **how)
    assert found[0].stats.preemptions > 0


def test_work_on_the_last_rank_alone(check: Any) -> None:
    check(8, ((),) * 7 + (tuple(range(6)),), redundant=4, interval=3)


def test_work_that_comes_late(check: Any) -> None:
    check(3, gaps=((0,), (30, 0, 0), (60, 0, 5)))


def test_blocks_that_run_out_on_one_rank(check: Any) -> None:
    parts = (tuple(LONG), (12, 13), (14,))
    found = check(3, parts, limits={"num_blocks": 6, "prefix_cache_blocks": 3}, interval=5, order=9)
    assert found[0].stats.preemptions > 0


@pytest.mark.parametrize(("size", "limits"), [(1, {}), (2, {"max_num_seqs": 2}), (4, {"max_num_batched_tokens": 20})])
def test_steps_computed_ahead(check: Any, size: int, limits: dict[str, int]) -> None:
    """Ranks that take what was computed ahead beside ranks that have prefills, or nothing."""
    found = check(size, ahead=True, limits=limits, gaps=tuple((2 * rank, 0, 0) for rank in range(size)))
    assert sum(outcome.taken for outcome in found) > 30
    assert len({outcome.graphs for outcome in found}) == 1, "all ranks run the same graphs"


def test_steps_computed_ahead_for_others(check: Any) -> None:
    """A rank with nothing runs graphs of the size of those that others need; experts move under all of it."""
    found = check(3, ((0, 1, 2), (), (3, 4, 5, 6, 7)), ahead=True, interval=2, redundant=3)
    assert found[1].graphs == found[2].graphs > 0


def test_counter_sums_by_rank_are_caught(check: Any) -> None:
    """On one rank they are right, so nothing but another number of ranks can show them."""
    check(1, faulty=True)
    with pytest.raises(AssertionError, match="differs"):
        check(4, faulty=True)
    with pytest.raises(AssertionError, match="differs"):
        check(8, faulty=True, order=3)
