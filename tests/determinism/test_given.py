"""A given continuation gets the logprobs that were recorded when the same tokens were drawn, bit for bit.

Guards against a scoring path of its own: other kernels, another softmax, a prefix cache that hides the logits of what
is scored, positions lost to a preemption. Every sampling feature, raw and processed, dense and with experts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.model_cases import as_bits, ids, long_requests, make_engine, requests, with_limits

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.engine.scoring import score
from batchgen.kernels.cpu.ops import attention as exact_attention
from batchgen.loader import LoadedModel
from batchgen.records import Completion, Request

LIMITS: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 1},
    {"max_num_seqs": 3, "max_num_batched_tokens": 17, "num_blocks": 7},
    {"max_num_batched_tokens": 5, "prefix_cache_blocks": 0},
]


def asked() -> list[Request]:
    wanted = [*requests(21), *long_requests()[:5]]
    return [replace(each, params=replace(each.params, logprobs=each.params.logprobs or 0)) for each in wanted]


def run(engine: Engine, wanted: list[Request], **limits: Any) -> dict[str, Completion]:
    engine.blocks.forget()
    return {done.row_key: done for done in with_limits(engine, **limits).generate(wanted)}


def given(wanted: list[Request], drawn: dict[str, Completion]) -> list[Request]:
    """The same requests, their answers given."""
    return [replace(each, continuation=drawn[each.row_key].token_ids) for each in wanted]


def recorded(completion: Completion) -> str:
    """The bits of what both ways record."""
    return as_bits(replace(completion, text="", finish_reason="length", stop_reason=None))


@pytest.fixture(scope="module")
def drawn(engine: Engine) -> dict[str, Completion]:
    return run(engine, asked())


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_raw(engine: Engine, drawn: dict[str, Completion], limits: dict[str, Any]) -> None:
    scored = run(engine, given(asked(), drawn), **limits)
    for key, completion in drawn.items():
        assert recorded(scored[key]) == recorded(completion), key


@pytest.mark.parametrize("limits", LIMITS[::2], ids=str)
def test_processed(model: LoadedModel, limits: dict[str, Any]) -> None:
    """With penalties, bans, biases and filters as they were when each token was drawn."""
    engine = make_engine(model, logprobs_mode="processed")
    drawn = run(engine, asked())
    scored = run(engine, given(asked(), drawn), **limits)
    for key, completion in drawn.items():
        assert recorded(scored[key]) == recorded(completion), key


def test_beside_draws(engine: Engine, drawn: dict[str, Completion]) -> None:
    """In one batch with the same requests, whose tokens are drawn meanwhile."""
    others = [replace(each, row_key=f"given {each.row_key}") for each in given(asked(), drawn)]
    mixed = [each for pair in zip(asked(), others, strict=True) for each in pair]
    for limits in LIMITS[2:3]:
        done = run(engine, mixed, **limits)
        for key, completion in drawn.items():
            assert recorded(done[key]) == recorded(completion), key
            other = replace(done[f"given {key}"], row_key=key)
            assert recorded(other) == recorded(completion), key


def test_a_warm_cache(engine: Engine) -> None:
    """The continuation's blocks are known from before; they are computed again, and the context is not."""
    pair = (ids(70), ids(60, first=9))
    engine.blocks.forget()
    cold = score(engine, [pair])
    before = engine.stats.cached_tokens
    assert score(engine, [pair]) == cold
    assert engine.stats.cached_tokens - before == 64


def test_one_continuation_in_two(engine: Engine) -> None:
    """Where the context ends cannot be seen, but for what is scored."""
    tokens = ids(90, step=3)
    whole = score(engine, [(tokens[:1], tokens[1:])])[0]
    for split in (2, 31, 32, 33, 64, 89):
        part = score(engine, [(tokens[:split], tokens[split:])])[0]
        assert part.logprobs == whole.logprobs[split - 1 :]
        assert part.greedy == whole.greedy[split - 1 :]


def with_prompt(wanted: list[Request], k: int) -> list[Request]:
    return [replace(each, params=replace(each.params, prompt_logprobs=k)) for each in wanted]


@pytest.mark.parametrize("limits", LIMITS[::2], ids=str)
def test_of_the_prompt(engine: Engine, drawn: dict[str, Completion], limits: dict[str, Any]) -> None:
    """As scored after its first token; and what is drawn after it is what it was."""
    done = run(engine, with_prompt(asked(), 2), **limits)
    prompts = {each.row_key: each.prompt_token_ids for each in asked()}
    longer = {key: ids_ for key, ids_ in prompts.items() if len(ids_) > 1}
    scored = score(engine, [(ids_[:1], ids_[1:]) for ids_ in longer.values()])
    for key, found in zip(longer, scored, strict=True):
        assert done[key].prompt_logprobs == (None, *found.logprobs)
        tops = done[key].prompt_top_logprobs_ids
        assert tops is not None
        best = [ids_ and ids_[0] for ids_ in tops]
        assert [a == b for a, b in zip(best, prompts[key], strict=True)][1:] == [*found.greedy]
    for key, completion in drawn.items():
        assert len(done[key].prompt_logprobs or ()) == len(prompts[key])
        plain = replace(done[key], prompt_logprobs=None, prompt_top_logprobs_ids=None, prompt_top_logprobs_values=None)
        assert as_bits(plain) == as_bits(completion), key


def test_of_the_prompt_they_are_raw_in_any_case(model: LoadedModel, engine: Engine) -> None:
    processed = make_engine(model, logprobs_mode="processed")
    wanted = with_prompt(asked(), 0)
    raw = run(engine, wanted)
    for key, completion in run(processed, wanted).items():
        assert completion.prompt_logprobs == raw[key].prompt_logprobs


def decoding_otherwise(*args: Any) -> torch.Tensor:
    """One bit in steps of single tokens."""
    out = exact_attention(*args)
    if len(args[0]) == len(args[2]):
        out.view(torch.int16)[:, 0] ^= 1
    return out


@pytest.mark.parametrize("check", [test_raw, test_beside_draws])
def test_counter_a_path_of_its_own_is_caught(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, check: Callable[..., None]
) -> None:
    monkeypatch.setattr(kernels, "attention", decoding_otherwise)
    with pytest.raises(AssertionError):
        check(engine, run(engine, asked()), *([{}] if check is test_raw else []))
