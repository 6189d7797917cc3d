"""The prefix cache: cold, warm, partly warm, off. Guards against hits that change a sum or the path of a kernel (vLLM
#33123: a miss runs other shapes than a hit), one-token prefills after a hit (#57016), and blocks of another prefix.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from support.cache_faults import one_token_short, without_the_parent
from support.model_cases import PARAMS, ask, assert_same, generate, ids, load_tiny, long_requests, make_engine, requests
from support.model_cases import with_limits as over

from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.engine import Engine
from batchgen.engine.model_runner import ModelRunner
from batchgen.kernels.cpu.native import library
from batchgen.records import Request

NO_AMX = pytest.mark.skipif(not library().has_amx(), reason="this processor has no AMX")
SHORT = [replace(params, max_tokens=5, min_tokens=0) for params in PARAMS]
HEADER = ids(70)
LONG = replace(PARAMS[2], max_tokens=75)  # goes on whatever is drawn


@pytest.fixture(
    scope="module",
    params=[("llama", "portable/1"), ("dots1", "portable/1"), pytest.param(("llama", "native-amx/1"), marks=NO_AMX)],
    ids=" ".join,
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    family, numerics = request.param
    return make_engine(load_tiny(tmp_path_factory.mktemp("prefixes"), family), numerics=numerics)


def plain(engine: Engine, wanted: Iterable[Request]) -> dict[str, str]:
    """What each request gives when it has the engine to itself and nothing is shared."""
    lone = over(engine, max_num_seqs=1, prefix_cache_blocks=0)
    answers = generate(lone, wanted)
    assert lone.stats.cached_tokens == 0
    return answers


def cached(engine: Engine, wanted: Iterable[Request], right: dict[str, str], what: str) -> int:
    """Generate, compare, and tell how many tokens were found in the cache."""
    before = engine.stats.cached_tokens
    assert_same(generate(engine, wanted), right, what)
    return engine.stats.cached_tokens - before


def forks() -> list[Request]:
    """Two beginnings, each with three second blocks, each with tails; a beginning and a block one token apart too."""
    first, second = ids(32), ids(32, 90, 3)
    beginnings = [first, (*first[:31], first[31] + 1), ids(32, 50, 5)]
    middles = [second, (*second[:31], second[31] + 1), ids(32, 20, 7)]
    tails = [ids(1, 150), ids(9, 160)]
    prompts = [(*b, *m, *t) for t in tails for i, b in enumerate(beginnings) for m in (middles[i:] + middles[:i])]
    return [ask(f"fork-{i}", prompt, SHORT[i % 3]) for i, prompt in enumerate(prompts)]


def test_cold_warm_and_off(engine: Engine) -> None:
    """All sampling features, prompts of 1 to 70 tokens; again on the same engine, backwards, and one at a time."""
    right = plain(engine, requests())
    warm = over(engine, max_num_seqs=9)
    cold = cached(warm, requests(), right, "cold")
    again = cached(warm, requests(), right, "warm")
    assert again > cold
    assert again == sum((len(request.prompt_token_ids) - 1) // 32 * 32 for request in requests()), "every full block"
    assert cached(warm, requests()[::-1], right, "backwards") == again
    assert cached(over(engine, max_num_seqs=9, prefix_cache_blocks=0), requests(), right, "off") == 0


def test_every_shared_length(engine: Engine) -> None:
    """Partly warm: what goes on like the cached prompt for 1 to 70 tokens and ends in 1 to 33 of its own."""
    wanted = [
        ask(f"shared-{shared}-{own}", (*HEADER[:shared], *ids(own, 100, 11)), SHORT[shared % len(SHORT)])
        for shared in range(1, 71)
        for own in ((1, 2) if shared % 32 in (0, 1, 31) else (1 + shared * 7 % 33,))
    ]
    seed = ask("header", HEADER, SHORT[0])
    right = plain(engine, [seed, *wanted])
    for width in (1, 8):
        warm = over(engine, max_num_seqs=width)
        cached(warm, [seed], right, "header")
        hits = cached(warm, wanted, right, f"{width} at once")
        assert hits >= sum(int(request.row_key.split("-")[1]) // 32 * 32 for request in wanted)


@pytest.mark.parametrize("budget", [*range(1, 41), 63, 64, 65])
def test_every_token_budget(engine: Engine, forked: dict[str, str], budget: int) -> None:
    chunked = over(engine, max_num_seqs=4, max_num_batched_tokens=budget)
    cold = cached(chunked, forks(), forked, f"cold, {budget}")
    assert 0 < cold < cached(chunked, forks(), forked, f"warm, {budget}") == 64 * len(forks())


@pytest.fixture(scope="module")
def forked(engine: Engine) -> dict[str, str]:
    return plain(engine, forks())


def crowd() -> list[Request]:
    sharing = [ask(f"sharing-{i}", (*HEADER[: 33 + i // 2], *ids(i % 2 * 9, i)), LONG) for i in range(8)]
    return [*sharing, *long_requests()[:5], *forks()]


@pytest.fixture(scope="module")
def uncrowded(engine: Engine) -> dict[str, str]:
    return plain(engine, crowd())


@pytest.mark.parametrize("num_blocks", [5, 6, 7, 8, 10, 13, 17])
def test_small_pools_and_caches(engine: Engine, uncrowded: dict[str, str], num_blocks: int) -> None:
    """Preemption of sequences that share, eviction of blocks while others hold what they follow, caches of any size."""
    wanted = crowd()
    for cache_blocks in (1, num_blocks):
        small = over(
            engine, max_num_seqs=8, max_num_batched_tokens=48, num_blocks=num_blocks, prefix_cache_blocks=cache_blocks
        )
        for order in (wanted, wanted[::-1]):
            assert cached(small, order, uncrowded, f"{num_blocks} blocks, {cache_blocks} kept") > 0
        assert small.stats.preemptions > 0


@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65, 70])
def test_samples_of_one_prompt_in_one_step(engine: Engine, length: int) -> None:
    """All eight begin in the first step, seven of them on blocks that the first computes in that same step."""
    wanted = samples(length)
    right = plain(engine, wanted)
    together = over(engine, max_num_batched_tokens=1000)
    known = (length - 1) // 32 * 32
    assert cached(together, wanted, right, "samples") == 7 * known
    assert together.stats.prefill_tokens == 8 * length - 7 * known
    assert len(set(right.values())) > 1
    for budget in (length, length + 1, length + 40):  # the others begin later, by ones and twos
        split = over(engine, max_num_batched_tokens=budget)
        assert cached(split, wanted, right, f"{budget} tokens a step") == 7 * known


def samples(length: int) -> list[Request]:
    return [ask(f"sample-{i}", HEADER[:length], SHORT[2]) for i in range(8)]


@pytest.mark.parametrize("num_prompt", [1, 20, 31, 32, 33])
def test_an_output_that_becomes_a_prompt(engine: Engine, num_prompt: int) -> None:
    """Blocks that decode wrote, one token at a time, under prompts that end at every place of the output."""
    first = ask("first", HEADER[:num_prompt], LONG)
    done = next(iter(over(engine).generate([first])))
    whole = (*first.prompt_token_ids, *done.token_ids)
    wanted = [ask(f"on-{n}", whole[:n], SHORT[n % 3]) for n in range(num_prompt + 1, len(whole) + 1)]
    right = plain(engine, [first, *wanted])
    warm = over(engine, prefix_cache_blocks=100)
    cached(warm, [first], right, "first")
    computed = (len(whole) - 1) // 32  # full blocks; the last token was drawn and not computed
    assert cached(warm, wanted, right, "on") == sum(
        32 * min(computed, (len(request.prompt_token_ids) - 1) // 32) for request in wanted
    )


@pytest.mark.parametrize("fault", [without_the_parent, one_token_short])
def test_counter_a_block_of_another_prefix_is_caught(
    engine: Engine, forked: dict[str, str], fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    monkeypatch.setattr(BlockManager, "check_integrity", lambda self, tables: None)  # the bits alone must tell
    with pytest.raises(AssertionError, match="differs"):
        cached(over(engine, max_num_seqs=1), forks(), forked, "forks")


def test_counter_a_step_that_attends_before_all_is_stored_is_caught(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunk by chunk, the last one first: the others attend to blocks that nobody has written yet."""
    wanted = samples(70)
    right = plain(engine, wanted)
    whole_step = ModelRunner.step

    def forwards(self: ModelRunner, chunks: list[Chunk]) -> list[Sampled]:
        return [draw for chunk in chunks for draw in whole_step(self, [chunk])]

    def backwards(self: ModelRunner, chunks: list[Chunk]) -> list[Sampled]:
        drawn = [whole_step(self, [chunk]) for chunk in reversed(chunks)]
        return [draw for draws in reversed(drawn) for draw in draws]

    monkeypatch.setattr(ModelRunner, "step", forwards)
    cached(over(engine, max_num_batched_tokens=1000), wanted, right, "samples")
    for table in engine.runner._cache:  # type: ignore[attr-defined]
        for tensor in table:
            tensor.zero_()  # else an earlier test may have left the very keys here
    monkeypatch.setattr(ModelRunner, "step", backwards)
    with pytest.raises(AssertionError, match="differs"):
        cached(over(engine, max_num_batched_tokens=1000), wanted, right, "samples")
