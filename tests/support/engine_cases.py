"""Requests for the engine that end in every way, what must become of them, and an engine to try it."""

from functools import cache
from typing import Any

from support.fake_runner import EOS, VOCAB_SIZE, FakeDetokenizer, FakeRunner, PoisoningBlocks
from support.oracle import expected_completion

from batchgen.engine.admission import ModelLimits
from batchgen.engine.engine import Engine
from batchgen.engine.scheduler import Limits
from batchgen.records import Completion, Request, SamplingParams

MODEL = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=24, eos_token_ids=frozenset({EOS}))
PARAMS = [
    SamplingParams(max_tokens=12, logprobs=2),
    SamplingParams(max_tokens=8, ignore_eos=True, logprobs=0),
    SamplingParams(max_tokens=12, min_tokens=6, stop_token_ids=(3,), stop=("ab", "ca", "b"), logprobs=1),
    SamplingParams(max_tokens=9, stop=("a",), include_stop_str_in_output=True, logprobs=3),
    SamplingParams(max_tokens=12, ignore_eos=True, skip_special_tokens=False),
    SamplingParams(max_tokens=1),
]
BAD_WORDS = ((0,), (1, 2), (5, 6, 7))


@cache
def requests() -> tuple[Request, ...]:
    prompt_lengths = (3, 1, 12, 7, 2, 9, 5, 12, 1, 4)
    return tuple(
        Request(
            row_key=f"row {i}",
            sample_index=i % 2,
            seed=2**64 - 1 - i,
            prompt_token_ids=tuple((7 * i + 3 * p) % VOCAB_SIZE for p in range(length)),
            params=PARAMS[i % len(PARAMS)],
            bad_words_token_ids=BAD_WORDS if i % 3 == 0 else (),
        )
        for i, length in enumerate(prompt_lengths)
    )


@cache
def expected() -> dict[str, Completion]:
    return {request.row_key: expected_completion(request) for request in requests()}


def make_engine(
    max_num_seqs: int = 4,
    budget: int = 16,
    num_blocks: int = 40,
    block_size: int = 3,
    cache_blocks: int = 10,
    **runner_options: Any,
) -> Engine:
    """An engine with small blocks, which make every fault of a block table likely."""
    runner = FakeRunner(num_blocks, block_size, **runner_options)
    limits = Limits(max_num_seqs, budget, num_blocks, cache_blocks)
    engine = Engine(runner, FakeDetokenizer(), MODEL, limits, {"numerics": "fake"})
    engine.blocks = PoisoningBlocks(runner, num_blocks, block_size, cache_blocks)
    return engine


def generate(engine: Engine) -> dict[str, Completion]:
    completions = list(engine.generate(requests()))
    assert len(completions) == len(requests())
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return {completion.row_key: completion for completion in completions}
