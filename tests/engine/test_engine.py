"""The engine over a fake runner: the same completions as one at a time, whatever the batch, the chunks and the pool."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
from support.engine_cases import MODEL, expected, generate, make_engine, requests
from support.fake_runner import VOCAB_SIZE, FakeDetokenizer, FakeRunner

from batchgen.engine.engine import Engine
from batchgen.engine.scheduler import Limits
from batchgen.errors import EngineError
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.records import Completion, Request, SamplingParams


def test_the_requests_end_in_every_way() -> None:
    reasons = [(completion.finish_reason, completion.stop_reason) for completion in expected().values()]
    assert {reason for reason, _ in reasons} == {"length", "stop"}
    assert any(isinstance(stop, str) for _, stop in reasons)
    assert sum(len(completion.token_ids) for completion in expected().values()) > 40


@pytest.mark.parametrize("max_num_seqs", range(1, 10))
def test_every_budget_and_pool_gives_what_one_at_a_time_gives(max_num_seqs: int) -> None:
    preemptions = 0
    for budget in range(1, 41):
        for block_size, num_blocks in ((3, 9), (1, 30)) if budget % 4 else ((5, 100), (32, 9)):
            engine = make_engine(max_num_seqs, budget, num_blocks, block_size)
            assert generate(engine) == expected(), (budget, block_size, num_blocks)
            preemptions += engine.stats.preemptions
    assert (preemptions > 0) == (max_num_seqs > 1), "the small pools must force preemption"


def test_the_order_of_requests_cannot_be_seen() -> None:
    for shift in range(len(requests())):
        order = requests()[shift:] + requests()[:shift]
        for ordered in (order, order[::-1]):
            completions = make_engine(num_blocks=12).generate(ordered)
            assert {completion.row_key: completion for completion in completions} == expected()


def test_requests_are_read_lazily_and_completions_come_early() -> None:
    read = []

    def endless() -> Iterator[Request]:
        for i in range(10**9):
            read.append(i)
            yield replace(requests()[i % 10], row_key=str(i))

    completions = make_engine(max_num_seqs=3).generate(endless())
    for done in range(1, 20):
        next(completions)
        assert len(read) <= done + 2 * 3
    completions.close()


def test_a_bad_row_is_an_error_completion_and_its_mates_go_on() -> None:
    victim = requests()[3]
    assert len(expected()[victim.row_key].token_ids) > 2
    completions = generate(make_engine(num_blocks=14, not_finite_at={victim.seed: 2}))
    failed = completions.pop(victim.row_key)
    assert failed == Completion(
        row_key=victim.row_key,
        sample_index=victim.sample_index,
        token_ids=(),
        text="",
        finish_reason="error",
        error_code="non_finite_logits",
        error_message="logits are not finite at output position 2",
    )
    assert completions == {key: value for key, value in expected().items() if key != victim.row_key}


@pytest.mark.parametrize(
    ("prompt", "code", "message"),
    [
        ((), "prompt_empty", "the prompt has no token"),
        ((1, VOCAB_SIZE, -1), "prompt_type", rf"prompt ids \[-1, {VOCAB_SIZE}\] lie outside the vocabulary"),
        ((1,) * 13, "prompt_overlong", r"13 prompt tokens \+ max_tokens 12 exceed max_model_len 24"),
    ],
)
def test_an_unanswerable_prompt_is_an_error_completion_wherever_it_stands(
    prompt: tuple[int, ...], code: str, message: str
) -> None:
    bad = replace(requests()[0], row_key="bad", prompt_token_ids=prompt)
    for at in range(len(requests()) + 1):
        mixed = [*requests()[:at], bad, *requests()[at:]]
        listed = list(make_engine().generate(mixed))
        assert len(listed) == len(mixed)
        completions = {completion.row_key: completion for completion in listed}
        failed = completions.pop("bad")
        assert (failed.finish_reason, failed.error_code, failed.token_ids) == ("error", code, ())
        assert re.match(message, failed.error_message or "")
        assert completions == expected()
    assert [completion.error_code for completion in make_engine().generate([bad] * 5)] == [code] * 5


def test_no_requests_no_completions() -> None:
    assert list(make_engine().generate([])) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"params": SamplingParams(top_p=2.0)}, "top_p"),
        ({"params": SamplingParams(stop_token_ids=(VOCAB_SIZE,))}, "stop_token_ids"),
        ({"params": SamplingParams(logit_bias={VOCAB_SIZE: 1.0})}, "logit_bias"),
        ({"bad_words_token_ids": ((VOCAB_SIZE,),)}, "bad_words_token_ids"),
        ({"bad_words_token_ids": ((),)}, "bad_words_token_ids"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_mistake_of_the_caller_names_the_request_and_the_field(change: dict[str, Any], where: str) -> None:
    engine = make_engine()
    with pytest.raises(EngineError, match=rf"^request 'row 2', sample 0: {where}: "):
        list(engine.generate([*requests()[:2], replace(requests()[2], **change)]))
    assert generate(engine) == expected(), "the engine is as good as new"


def test_blocks_are_those_of_the_profile() -> None:
    engine = Engine(FakeRunner(1, 32), FakeDetokenizer(), MODEL, Limits(1, 1, 1, 0), {})
    assert engine.blocks.block_size == BLOCK_SIZE == 32


def test_an_endless_stream_of_requests_that_cannot_be_answered() -> None:
    """Each is told before the next is read, beside sequences that run and without."""
    taken = count()

    def endless() -> Iterator[Request]:
        yield requests()[0]
        while True:
            next(taken)
            yield replace(requests()[0], row_key="empty", prompt_token_ids=())

    completions = make_engine(max_num_seqs=3).generate(endless())
    found = list(islice(completions, 40))
    completions.close()
    assert [done.error_code for done in found].count("prompt_empty") == 39
    assert next(taken) <= 40


@pytest.mark.parametrize("field", ["max_num_seqs", "max_num_batched_tokens", "num_blocks"])
def test_limits_below_one_are_refused(field: str) -> None:
    limits = replace(Limits(1, 1, 1, 0), **{field: 0})  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=f"^{field}: must be at least 1, got 0"):
        Engine(FakeRunner(1, 32), FakeDetokenizer(), MODEL, limits, {})


def test_a_pool_smaller_than_one_sequence_is_refused() -> None:
    model = replace(MODEL, max_model_len=65)
    with pytest.raises(EngineError, match="has 2 blocks; one sequence of max_model_len 65 tokens needs 3"):
        Engine(FakeRunner(2, 32), FakeDetokenizer(), model, Limits(1, 1, 2, 0), {})
    Engine(FakeRunner(3, 32), FakeDetokenizer(), model, Limits(1, 1, 3, 0), {})


def test_a_cache_of_fewer_than_no_blocks_is_refused() -> None:
    with pytest.raises(EngineError, match=r"^prefix_cache_blocks: must not be negative, got -1"):
        Engine(FakeRunner(1, 32), FakeDetokenizer(), MODEL, Limits(1, 1, 1, -1), {})


def test_eos_outside_the_vocabulary_is_refused() -> None:
    model = replace(MODEL, eos_token_ids=frozenset({0, VOCAB_SIZE}))
    with pytest.raises(EngineError, match=rf"\[{VOCAB_SIZE}\] lie outside"):
        Engine(FakeRunner(1, 32), FakeDetokenizer(), model, Limits(1, 1, 1, 0), {})


def test_closing_early_frees_everything_and_the_engine_can_go_on() -> None:
    engine = make_engine(num_blocks=12)
    for taken in range(1, len(requests())):
        completions = engine.generate(requests())
        for _ in range(taken):
            next(completions)
        completions.close()
        assert engine.blocks.num_free == 12
    assert generate(engine) == expected()


def test_a_failing_source_of_requests_frees_everything() -> None:
    def source() -> Iterator[Request]:
        yield from requests()[:3]
        raise OSError("torn file")

    engine = make_engine()
    with pytest.raises(OSError, match="torn file"):
        list(engine.generate(source()))
    assert generate(engine) == expected()


def test_two_generations_at_once_are_refused() -> None:
    engine = make_engine()
    first = engine.generate(requests())
    next(first)
    with pytest.raises(EngineError, match="already generating"):
        next(engine.generate(requests()))
    assert len(list(first)) == len(requests()) - 1


def test_stats_count_what_was_done() -> None:
    engine = make_engine(max_num_seqs=9, budget=1000, num_blocks=400)
    generate(engine)
    stats = engine.stats
    assert stats.prefill_tokens + stats.cached_tokens == sum(len(r.prompt_token_ids) for r in requests())
    assert stats.cached_tokens > 0
    assert stats.output_tokens >= sum(len(completion.token_ids) for completion in expected().values())
    assert stats.preemptions == 0
    assert 0 < stats.steps < stats.output_tokens
    assert 0 < stats.peak_blocks < 400
    assert stats.prefill_seconds > 0
    assert stats.decode_seconds > 0


def test_a_runner_that_draws_too_few_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    step = FakeRunner.step
    monkeypatch.setattr(FakeRunner, "step", lambda self, chunks: step(self, chunks)[1:])
    with pytest.raises(ValueError, match="rows of"):
        generate(make_engine())
