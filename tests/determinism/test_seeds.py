"""Seeds: equal ones give equal answers, any others give answers of their own.

Guards against one seed for many rows, which gives equal noise to all (vLLM #50440, SGLang PR #28805), a seed that is
ignored (SGLang #15481, vLLM #51226), a generator that is seeded again at each step (vllm-metal PR #50), seeds and
streams that overlap with their neighbours', and noise keyed by rank and not by token (SGLang PR #35697).
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.model_cases import VOCAB, ask, generate, ids, with_limits
from support.sampling import sample_rows

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.reference.noise import DRAW_LANE, gumbel
from batchgen.records import Request, SamplingParams
from batchgen.seeds import sample_seed

PARAMS = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, logprobs=0)
PROMPT = ids(20)


def answers(engine: Engine, wanted: Iterable[Request]) -> list[tuple[int, ...]]:
    """Token ids in the order of the requests."""
    wanted = list(wanted)
    done = {completion.row_key: completion.token_ids for completion in with_limits(engine).generate(wanted)}
    return [done[request.row_key] for request in wanted]


def test_equal_prompts_under_other_keys_get_other_noise(engine: Engine) -> None:
    """Forty rows that differ in nothing but their key."""
    assert len(set(answers(engine, [ask(f"row-{i}", PROMPT, PARAMS) for i in range(40)]))) == 40


def test_equal_seeds_give_equal_answers(engine: Engine) -> None:
    """The seed and not the key goes into the noise: forty rows of one seed are forty times one answer."""
    one = ask("row", PROMPT, PARAMS)
    assert len(set(answers(engine, [replace(one, row_key=f"row-{i}") for i in range(40)]))) == 1


@pytest.mark.parametrize("steps", [1, 2, 2**32, 2**63])
def test_neighbouring_seeds(engine: Engine, steps: int) -> None:
    """s, s + 1, ...: no answer twice, and none is another one moved along."""
    one = ask("row", PROMPT, PARAMS)
    found = answers(engine, [replace(one, row_key=f"row-{i}", seed=(one.seed + i * steps) % 2**64) for i in range(20)])
    assert len(set(found)) == (20 if steps < 2**63 else 2)  # of the last, only two are different seeds
    firsts = {answer[:6] for answer in found}
    assert not any(answer[shift : shift + 6] in firsts for answer in found for shift in range(1, 6))


def test_the_ends_of_the_range(engine: Engine) -> None:
    """0, the largest, and those around the places where signed and 32-bit integers end: each is a seed of its own."""
    one = ask("row", PROMPT, PARAMS)
    seeds = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    assert len(set(answers(engine, [replace(one, row_key=f"seed {seed}", seed=seed) for seed in seeds]))) == len(seeds)


def test_neighbouring_job_seeds_and_samples() -> None:
    """No seed of a job, row or sample is that of another, nor lies in a stretch with its neighbours."""
    seeds = [sample_seed(job, f"row-{row}", index) for job in range(20) for row in range(50) for index in range(8)]
    assert len(set(seeds)) == len(seeds)
    apart = np.diff(np.sort(np.array(seeds, np.uint64)))
    assert apart.min() > 2**20, "two seeds are close: a step of one would meet the other"


def test_the_noise_of_every_seed_and_position_is_its_own() -> None:
    """Streams of neighbouring seeds at neighbouring positions share no value but by chance."""
    streams = {(s, p): gumbel(s, p, DRAW_LANE, 512) for s in range(12) for p in range(12)}
    seen = np.sort(np.concatenate(list(streams.values())))
    assert (np.diff(seen) == 0).mean() < 0.02
    for (seed, position), noise in streams.items():
        for shift in (1, 2, 4, 16):
            for other in (streams.get((seed + 1, position)), streams.get((seed, position + 1))):
                assert other is None or not (noise[shift:] == other[:-shift]).any()


def test_each_step_has_noise_of_its_own(engine: Engine) -> None:
    """On flat logits the draws are the noise alone: no token follows from the step before."""
    flat = SamplingParams(temperature=100.0, max_tokens=100, ignore_eos=True)
    [answer] = answers(engine, [ask("row", PROMPT, flat)])
    assert len(set(answer)) > 60


@pytest.mark.parametrize("top_k", [1, 2, 3, 7, 20, 50, 150, VOCAB])
def test_the_noise_goes_by_token_id(top_k: int) -> None:
    """A filter takes tokens away and moves no noise: of what is left, the greatest of logit + its own noise wins."""
    logits = torch.randn(30, VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    plain = sample_rows(30, seed=list(range(30)), position=list(range(5, 35)))
    filtered = sample_rows(30, seed=list(range(30)), position=list(range(5, 35)), top_k=[top_k, 0] * 15)
    free = kernels.sample(logits, plain, processed_logprobs=False).token
    token = kernels.sample(logits, filtered, processed_logprobs=False).token
    for r in range(30):
        kept = np.argsort(-logits[r].numpy(), kind="stable")[: top_k if r % 2 == 0 else VOCAB]
        z = (logits[r] - logits[r].max()).numpy() + gumbel(r, 5 + r, DRAW_LANE, VOCAB)
        assert token[r] == kept[np.argmax(z[kept])]
        assert token[r] == free[r] or (r % 2 == 0 and free[r] not in kept)


def test_counter_one_seed_for_all_is_caught(engine: Engine) -> None:
    """A job's seed taken as each sample's: what the first test is there for."""
    wanted = [replace(ask(f"row-{i}", PROMPT, PARAMS), seed=7) for i in range(40)]
    assert len(set(answers(engine, wanted))) == 1


def test_counter_a_stream_restarted_at_each_step_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import batchgen.engine.sampling as sampling

    right = sampling.sample_rows

    def restarted(sequences: list[object]) -> object:
        rows = right(sequences)  # type: ignore[arg-type]
        rows.position[:] = 0
        return rows

    monkeypatch.setattr(sampling, "sample_rows", restarted)
    with pytest.raises(AssertionError):
        test_each_step_has_noise_of_its_own(engine)


def test_a_seed_is_used_at_all(engine: Engine) -> None:
    one = ask("row", PROMPT, PARAMS)
    again = generate(with_limits(engine), [one])
    assert generate(with_limits(engine), [one]) == again
    assert generate(with_limits(engine), [replace(one, seed=one.seed ^ 1)]) != again
