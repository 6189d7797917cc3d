"""The company that a row keeps: a neighbour of every length, refused, growing, ending, broken, or out of all scale.

Guards against a tile chosen by what a mate adds to the step (vLLM #51902: a neighbour that grew from 9 to 10 tokens
moved a decoding row's bits), a scale taken over the whole batch (vLLM #57016), and what a bad row leaves behind.
"""

import pytest
import torch
from support.model_cases import (
    MAX_MODEL_LEN,
    PARAMS,
    ask,
    assert_same,
    generate,
    ids,
    load_edited,
    make_engine,
    with_limits,
)

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.cpu.ops import attention as exact_attention
from batchgen.kernels.cpu.ops import linear as exact_linear
from batchgen.kernels.packing import PackedWeight
from batchgen.records import Request, SamplingParams

NAN, HUGE = 197, 198  # tokens of the broken model
SUBJECTS = [ask(f"subject-{i}", ids(length, i), PARAMS[i]) for i, length in enumerate((4, 31, 40, 12))]
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
FILLER = ask("filler", ids(2), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))


@pytest.fixture(scope="module")
def single(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1), SUBJECTS)


def beside(engine: Engine, mates: list[Request], **limits: int) -> dict[str, str]:
    """The subjects' answers when the mates come after them, first, and in between."""
    found: dict[str, str] = {}
    for batch in ([*SUBJECTS, *mates], [*mates, *SUBJECTS], [*SUBJECTS[:2], *mates, *SUBJECTS[2:]]):
        answers = generate(with_limits(engine, **limits), batch)
        for key in (request.row_key for request in SUBJECTS):
            assert found.setdefault(key, answers[key]) == answers[key], f"{key} differs with the order"
    return found


@pytest.mark.parametrize("length", range(1, 71))
def test_every_prompt_length(engine: Engine, single: dict[str, str], length: int) -> None:
    """Beside the subjects' prefills, and, once a filler has made room, whole beside their decodes."""
    mate = ask("mate", ids(length, 50), GREEDY)
    assert_same(beside(engine, [mate]), single, f"a mate of {length} tokens")
    assert_same(beside(engine, [FILLER, mate], max_num_seqs=5), single, f"a late mate of {length} tokens")


@pytest.mark.parametrize("budget", range(5, 20))
def test_a_prefill_of_every_size_beside_decodes(engine: Engine, single: dict[str, str], budget: int) -> None:
    """The subjects decode while chunks of 1, 2, ... tokens of a long prompt share their steps."""
    mates = [ask(f"mate-{i}", ids(n, 50), GREEDY) for i, n in enumerate((70, 9, 10, 11))]
    assert_same(beside(engine, mates, max_num_batched_tokens=budget), single, f"chunks of {budget} - 4")


@pytest.mark.parametrize(("prompt", "output"), [(MAX_MODEL_LEN - 1, 1), (1, MAX_MODEL_LEN - 1), (80, 80), (1, 1)])
def test_at_the_limit_of_length(engine: Engine, single: dict[str, str], prompt: int, output: int) -> None:
    params = SamplingParams(temperature=1.2, max_tokens=output, ignore_eos=True, logprobs=0)
    mates = [ask(f"mate-{i}", ids(prompt, i), params) for i in range(3)]
    assert_same(beside(engine, mates), single, f"{prompt} + {output} tokens")


@pytest.mark.parametrize(
    ("prompt", "code"),
    [((), "prompt_empty"), (ids(MAX_MODEL_LEN), "prompt_overlong"), (ids(153), "prompt_overlong"), ((10**6,), "type")],
)
def test_a_mate_that_is_refused(engine: Engine, single: dict[str, str], prompt: tuple[int, ...], code: str) -> None:
    """It is an error row, and good rows beside it are as they are alone."""
    refused = [ask(f"refused-{i}", prompt, GREEDY) for i in range(3)]
    assert_same(beside(engine, refused), single, code)
    answers = generate(with_limits(engine), [*refused, *SUBJECTS])
    assert all(code in answers[request.row_key] for request in refused)


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_ends_in_the_same_step_or_near_it(engine: Engine, single: dict[str, str], max_tokens: int) -> None:
    """Mates that leave before, with and after each subject, one by one and all together."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for count in (1, 6):
        mates = [ask(f"mate-{i}", ids(6, i), params) for i in range(count)]
        assert_same(beside(engine, mates), single, f"{count} mates of {max_tokens} tokens")


def test_a_mate_that_ends_by_every_means(engine: Engine, single: dict[str, str]) -> None:
    """By a stop id, by a string, by the first token, by a ban of everything."""
    everything = tuple(range(engine.model.vocab_size))
    ways = {
        "id": SamplingParams(max_tokens=20, stop_token_ids=everything),
        "string": SamplingParams(max_tokens=20, stop=("e", "a", "t", " ")),
        "late": SamplingParams(max_tokens=20, min_tokens=11, stop_token_ids=everything[100:]),
    }
    mates = [ask(way, ids(5), params) for way, params in ways.items()]
    mates.append(ask("banned", ids(5), GREEDY, bad_words=tuple((i,) for i in everything)))
    assert_same(beside(engine, mates), single, "mates that stop")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model in which one token's values in the KV cache are infinite, and another's activations 1e30 times the rest.

    Channel 0 is the first token's alone: no layer writes to it, and only the values read it, times 3e38.
    """

    def edit(weights: dict[str, torch.Tensor]) -> None:
        embedding = weights["model.embed_tokens.weight"]
        embedding[:, 0] = 0
        embedding[NAN, 0] = 100
        embedding[HUGE] *= 1e30
        for name, weight in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[0] = 0
            elif name.endswith("v_proj.weight"):
                weight[:, 0] = 3e38

    return make_engine(load_edited(tmp_path_factory.mktemp("broken"), edit))


@pytest.mark.parametrize("token", [NAN, HUGE])
def test_a_mate_out_of_all_scale(broken: Engine, token: int) -> None:
    """Its prompt holds the token at its start, in its middle, at its end; blocks that it used go to the subjects."""
    calm = generate(with_limits(broken, max_num_seqs=1), SUBJECTS)
    prompts = [(token, *ids(8)), (*ids(33), token, *ids(4)), (*ids(31), token), (token,) * 64]
    mates = [ask(f"mate-{i}", prompt, GREEDY) for i, prompt in enumerate(prompts)]
    for how in ({}, {"max_num_seqs": 2}, {"max_num_seqs": 3, "num_blocks": 9}, {"max_num_batched_tokens": 11}):
        assert_same(beside(broken, mates, **how), calm, f"beside {token}, {how}")
    answers = generate(with_limits(broken), mates)
    failed = ["non_finite_logits" in answers[request.row_key] for request in mates]
    assert all(failed) if token == NAN else len(set(answers.values())) == len(mates)


def tile_by_step(
    q: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    tables: torch.Tensor,
    start: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Attention with another tile, hence another last bit, when some mate brings ten tokens or more: vLLM #51902."""
    out = exact_attention(q, cache, tables, start, positions)
    if len(start) > 2 and int(start.diff().max()) >= 10:
        out.view(torch.int16)[:, 0] ^= 1
    return out


def test_counter_a_tile_that_a_mate_chooses_is_caught(
    engine: Engine, single: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At nine tokens nothing shows, at ten it does. The mate meets a decode: until then a filler holds its place."""
    monkeypatch.setattr(kernels, "attention", tile_by_step)

    def beside_a_late_mate(length: int) -> dict[str, str]:
        batch = [SUBJECTS[0], FILLER, ask("mate", ids(length, 50), GREEDY)]
        answers = generate(with_limits(engine, max_num_seqs=2), batch)
        return {SUBJECTS[0].row_key: answers[SUBJECTS[0].row_key]}

    assert_same(beside_a_late_mate(9), single, "nine")
    with pytest.raises(AssertionError, match="differs"):
        assert_same(beside_a_late_mate(10), single, "ten")


def test_counter_a_scale_over_the_batch_is_caught(broken: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations rounded in units of the largest of the step, as one dynamic scale for all tokens does."""

    def scaled(
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        step = x.float().nan_to_num().abs().max().clamp(min=1e-6) / 127
        return exact_linear(((x / step).round() * step).to(torch.bfloat16), weight, bias, residual, out)

    monkeypatch.setattr(kernels, "linear", scaled)
    calm = generate(with_limits(broken, max_num_seqs=1), SUBJECTS[:1])
    answers = generate(with_limits(broken), [SUBJECTS[0], ask("mate", (HUGE, *ids(8)), GREEDY)])
    with pytest.raises(AssertionError, match="differs"):
        assert_same({SUBJECTS[0].row_key: answers[SUBJECTS[0].row_key]}, calm, "beside an outlier")
