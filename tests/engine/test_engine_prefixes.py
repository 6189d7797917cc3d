"""Shared beginnings over a fake runner: what others computed, before or beside a request, cannot be seen in it."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
from support.cache_faults import one_token_short, without_the_parent
from support.engine_cases import BAD_WORDS, PARAMS, make_engine
from support.fake_runner import EOS, FakeRunner
from support.oracle import expected_completion

from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.engine import Engine
from batchgen.engine.prefix_tree import PrefixTree
from batchgen.errors import EngineError
from batchgen.records import Completion, Request, SamplingParams

_known: dict[str, Completion] = {}


def expected(request: Request) -> Completion:
    """What the request gives when nothing is shared; computed once."""
    key = repr(request)
    if key not in _known:
        _known[key] = expected_completion(request)
    return _known[key]


def ask(key: str, prompt: Sequence[int], params: SamplingParams = PARAMS[0], seed: int = 5) -> Request:
    return Request(key, 0, seed, tuple(prompt), params, BAD_WORDS)


@cache
def alike(seed: int) -> tuple[Request, ...]:
    """Prompts that fork from a few others at every place, some of them an earlier prompt with its output."""
    rng = random.Random(seed)
    prompts: list[tuple[int, ...]] = [()]
    made = []
    for i in range(24):
        old = rng.choice(prompts)
        prompt = (*old[: rng.randint(0, len(old))], *rng.choices((1, 2), k=rng.randint(1, 4)))[:12]
        request = ask(f"row {i}", prompt, rng.choice(PARAMS), seed=rng.randrange(4))
        made.append(request)
        prompts += [prompt, (*prompt, *expected(request).token_ids)[:12]]
    return tuple(made)


def answer(engine: Engine, wanted: Sequence[Request]) -> int:
    """Generate and compare; the tokens that were found in the cache."""
    before = engine.stats.cached_tokens
    done = {completion.row_key: completion for completion in engine.generate(wanted)}
    assert done == {request.row_key: expected(request) for request in wanted}
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return engine.stats.cached_tokens - before


@pytest.mark.parametrize("seed", range(12))
def test_cold_warm_and_in_another_order(seed: int) -> None:
    """Pools and caches larger and smaller than needed; twice on one engine, then backwards."""
    rng = random.Random(seed)
    preemptions = cached = 0
    for budget in (*range(1, 20), 40):
        block_size = rng.randint(1, 5)
        num_blocks = -(-24 // block_size) + rng.choice((0, 1, 5, 200))
        cache_blocks = rng.choice((1, num_blocks // 4 + 1, num_blocks))
        engine = make_engine(rng.randint(1, 9), budget, num_blocks, block_size, cache_blocks)
        wanted = alike(seed)
        cold, warm = answer(engine, wanted), answer(engine, wanted)
        answer(engine, wanted[::-1])
        assert warm >= cold or cache_blocks < 200
        cached += warm
        preemptions += engine.stats.preemptions
    assert preemptions > 0
    assert cached > 0


def test_without_a_cache_every_token_is_computed() -> None:
    engine = make_engine(max_num_seqs=9, budget=100, num_blocks=400, cache_blocks=0)
    for _ in range(2):
        assert answer(engine, alike(0)) == 0
    assert engine.stats.prefill_tokens == 2 * sum(len(request.prompt_token_ids) for request in alike(0))


def test_fresh_requests_use_nothing_that_is_known() -> None:
    engine = make_engine(max_num_seqs=9, budget=100, num_blocks=400, cache_blocks=400)
    assert answer(engine, alike(0)) > 0
    assert answer(engine, [replace(request, fresh=True) for request in alike(0)]) == 0


def test_fresh_requests_that_are_preempted_use_nothing_either() -> None:
    """Neither what others registered meanwhile nor their own: nobody could tell the two apart."""
    engine = make_engine(max_num_seqs=9, budget=100, num_blocks=14, block_size=2, cache_blocks=14)
    wanted = [replace(request, fresh=i % 2 == 0) for i, request in enumerate(alike(0))]
    assert answer(engine, wanted) > 0
    assert answer(engine, [replace(request, fresh=True) for request in wanted]) == 0
    assert engine.stats.preemptions > 10


@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("budget", [1, 31, 32, 33, 500])
def test_blocks_of_the_profile(length: int, budget: int) -> None:
    """Prompts of a block's length and one off: alone, again, its samples together, and one that goes on."""
    model = replace(make_engine().model, max_model_len=100)
    ids = [(3 * p + p // 7) % (EOS - 1) for p in range(length)]
    params = SamplingParams(max_tokens=34, ignore_eos=True, logprobs=1)
    first = ask("first", ids, params)
    going_on = ask("on", [*ids, *expected(first).token_ids][: length + 33], replace(params, max_tokens=1))
    samples = [ask(f"sample {i}", ids, params, seed=i) for i in range(4)]
    known = (length - 1) // 32 * 32
    for cache_blocks in (1, 40):
        engine = make_engine(4, budget, 40, 32, cache_blocks)
        engine.model = model
        assert answer(engine, [first]) == 0
        kept = 32 * cache_blocks
        assert answer(engine, [first]) == min(known, kept)
        assert answer(engine, [going_on]) == min((length + 32) // 32 * 32, kept)
        engine = make_engine(4, budget, 40, 32, cache_blocks)
        engine.model = model
        # With one token a step they run one after the other, and find no more than is kept.
        assert answer(engine, samples) == 3 * (known if budget > 1 else min(known, kept))


def test_an_endless_stream_of_new_prompts_takes_no_more_memory() -> None:
    def endless() -> Iterator[Request]:
        for i in range(10**9):
            yield ask(str(i), [i % 13, i // 13 % 13, i // 169 % 13, 1, 2, 3], PARAMS[5])

    engine = make_engine(max_num_seqs=3, num_blocks=30, block_size=2, cache_blocks=7)
    stream = engine.generate(endless())
    for completion in islice(stream, 700):
        assert completion.error_code is None
        assert len(engine.blocks._prefixes) <= 7 + 3 * 4
    stream.close()


class Failing(FakeRunner):
    """Breaks down before it computes the step of this number."""

    fails_at = -1

    def step(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise OSError("the step is lost")
        return super().step(chunks)


def broken_down(step: int) -> Engine:
    """An engine whose generation was lost in this step, after chunks were registered."""
    engine = make_engine(max_num_seqs=4, budget=9, num_blocks=60, block_size=2, cache_blocks=60)
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    runner.__class__ = Failing
    runner.fails_at = step  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="the step is lost"):
        list(engine.generate(alike(1)))
    return engine


def torn_source(after: int) -> Engine:
    """An engine whose source of requests failed while a step was being scheduled."""

    def source() -> Iterator[Request]:
        yield from alike(1)[:after]
        raise OSError("torn file")

    engine = make_engine(max_num_seqs=9, budget=100, num_blocks=60, block_size=2, cache_blocks=60)
    with pytest.raises(OSError, match="torn file"):
        list(engine.generate(source()))
    return engine


@pytest.mark.parametrize("lose", [broken_down, torn_source])
def test_a_lost_step_leaves_nothing_that_was_not_computed(lose: Callable[[int], Engine]) -> None:
    for at in range(1, 12):
        engine = lose(at)
        engine.blocks.check_integrity([])
        answer(engine, alike(1))
        assert answer(engine, alike(1)) > 0


@pytest.mark.parametrize("lose", [broken_down, torn_source])
def test_counter_a_cache_that_outlives_a_lost_step_is_caught(
    lose: Callable[[int], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockManager, "forget", lambda self: None)

    def go_on() -> None:
        for at in range(1, 12):
            answer(lose(at), alike(1))

    with pytest.raises(AssertionError, match="never written"):
        go_on()


def before_it_is_full(patch: pytest.MonkeyPatch) -> None:
    right = PrefixTree.add
    patch.setattr(PrefixTree, "add", lambda self, table, ids, start, stop: right(self, table, ids, start, stop + 1))


def the_last_token_too(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is known whole is not computed at all."""
    right = PrefixTree.find
    patch.setattr(PrefixTree, "find", lambda self, ids, most: right(self, ids, len(ids) // self._block_size))


def found_after_its_reuse(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixTree, "remove", lambda self, block: None)


def freed_while_others_hold_it(patch: pytest.MonkeyPatch) -> None:
    def free(self: BlockManager, table: list[int]) -> None:
        for block in set(table):
            self._owners[block] = 1
        right(self, table)

    right = BlockManager.free
    patch.setattr(BlockManager, "free", free)


def no_fault(patch: pytest.MonkeyPatch) -> None:
    pass


def everything() -> None:
    for seed in range(3):
        for max_num_seqs, num_blocks, cache_blocks in ((1, 100, 50), (6, 13, 4), (6, 100, 100)):
            engine = make_engine(max_num_seqs, 30, num_blocks, 2, cache_blocks)
            for _ in range(2):
                answer(engine, alike(seed))


def test_without_a_fault_all_is_well() -> None:
    everything()


@pytest.mark.parametrize(
    "fault",
    [
        without_the_parent,
        one_token_short,
        before_it_is_full,
        the_last_token_too,
        found_after_its_reuse,
        freed_while_others_hold_it,
    ],
)
def test_counter_a_fault_is_seen(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, EngineError, KeyError)):
        everything()
