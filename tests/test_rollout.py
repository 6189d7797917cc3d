"""The engine in a training loop: groups by name, the same bits as anywhere, other weights as if opened with them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_cases import as_bits
from support.tiny_models import tiny_config, tiny_weights, write_tiny

from batchgen import BatchgenError, Engine, SamplingParams
from batchgen.engine.block_manager import BlockManager
from batchgen.errors import EngineError, ModelError, SpecError
from batchgen.records import StructuredOutputs
from batchgen.rollout import Prompt, Rollout
from batchgen.seeds import sample_seed

PARAMS = SamplingParams(n=3, temperature=0.9, top_p=0.95, max_tokens=12, logprobs=2, ignore_eos=True)
SHARED = "A long beginning of the kind that many prompts of a training have in common, and that is kept: "
PROMPTS: dict[str, Prompt] = {
    "text": SHARED + "one",
    "ids": tuple(range(20, 60)),
    "chat": [{"role": "user", "content": SHARED + "two"}],
}
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Two models that differ in their weights alone."""
    root = tmp_path_factory.mktemp("rollout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHGEN_CACHE", str(root / "cache"))
        yield [write_tiny(root / f"model-{seed}", seed=seed) for seed in range(2)]


@pytest.fixture
def engine(folders: list[Path]) -> Iterator[Engine]:
    with Engine.open(folders[0], threads=1, kv_cache_bytes=1 << 26) as opened:
        yield opened


@pytest.fixture(scope="module")
def of_the_new(folders: list[Path]) -> tuple[list[str], dict[str, str]]:
    """What the second model says, and who it is."""
    with Engine.open(folders[1], threads=1, kv_cache_bytes=1 << 26) as opened:
        return bits(opened.generate(PROMPTS, PARAMS, seed=7)), opened.fingerprint


def bits(rollouts: list[Rollout]) -> list[str]:
    return [as_bits(rollout.completion) for rollout in rollouts]


def test_groups_in_order_each_of_its_name(engine: Engine) -> None:
    rollouts = engine.generate(PROMPTS, PARAMS, seed=7)
    names = [(rollout.request.row_key, rollout.request.sample_index) for rollout in rollouts]
    assert names == [(key, index) for key in PROMPTS for index in range(3)]
    assert [rollout.request.seed for rollout in rollouts] == [sample_seed(7, *name) for name in names]
    assert {rollout.version for rollout in rollouts} == {"initial"}
    assert {rollout.weights_digest for rollout in rollouts} == {engine.fingerprint["weights_digest"]}
    assert all(len(rollout.completion.token_ids) == 12 for rollout in rollouts)
    assert len({rollout.completion.token_ids for rollout in rollouts}) == 9


def test_neither_company_nor_n_nor_the_form_of_the_request_is_seen(engine: Engine) -> None:
    rollouts = engine.generate(PROMPTS, PARAMS, seed=7)
    alone = [engine.generate({key: prompt}, replace(PARAMS, n=5), seed=7)[:3] for key, prompt in PROMPTS.items()]
    assert bits([rollout for group in alone for rollout in group]) == bits(rollouts)
    assert bits(engine.generate([rollout.request for rollout in reversed(rollouts)])) == bits(rollouts)[::-1]
    assert not set(bits(engine.generate(PROMPTS, PARAMS, seed=8))) & set(bits(rollouts))


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_scores_are_the_logprobs_of_the_rollout(folders: list[Path], mode: str) -> None:
    params = replace(PARAMS, temperature=0.7) if mode == "processed" else PARAMS
    with Engine.open(folders[0], logprobs_mode=mode, threads=1, kv_cache_bytes=1 << 26) as engine:
        rollouts = engine.generate(PROMPTS, params, seed=7)
        assert bits(engine.score(rollouts)) == bits(rollouts)


def test_scores_of_other_weights_are_theirs(engine: Engine, folders: list[Path]) -> None:
    rollouts = engine.generate(PROMPTS, PARAMS, seed=7)
    engine.update_weights(tiny_weights(tiny_config("llama"), 1), version="one")
    scored = engine.score([*rollouts, *rollouts])
    assert {rollout.version for rollout in scored} == {"one"}
    assert bits(scored[:9]) == bits(scored[9:])
    for then, now in zip(rollouts, scored, strict=False):
        assert now.request == then.request
        assert now.completion.token_ids == then.completion.token_ids
        assert now.completion.text == then.completion.text
        assert now.completion.logprobs != then.completion.logprobs


def test_new_weights_as_if_opened_with_them(engine: Engine, of_the_new: tuple[list[str], dict[str, str]]) -> None:
    engine.generate(PROMPTS, PARAMS, seed=7)  # what it caches is of the old ones
    weights = {name: tensor.float().requires_grad_() for name, tensor in tiny_weights(tiny_config("llama"), 1).items()}
    digest = engine.update_weights(weights, version="step 1")
    rollouts = engine.generate(PROMPTS, PARAMS, seed=7)
    assert bits(rollouts) == of_the_new[0]
    assert engine.fingerprint == of_the_new[1]
    assert digest == engine.fingerprint["weights_digest"]
    assert {(rollout.version, rollout.weights_digest) for rollout in rollouts} == {("step 1", digest)}


def test_counter_a_cache_that_is_kept_is_caught(
    engine: Engine, of_the_new: tuple[list[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockManager, "forget", lambda blocks: None)
    with pytest.raises(AssertionError):
        test_new_weights_as_if_opened_with_them(engine, of_the_new)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "weights 'bad': tensor model.norm.weight is missing"),
        (lambda weights: weights.update({"lora.a": torch.ones(2)}), "weights 'bad': unknown tensor lora.a"),
        (lambda weights: weights.update({"lm_head.weight": torch.ones(3, 9)}), r"lm_head.weight has shape \[3, 9\]"),
        (lambda weights: weights["lm_head.weight"].fill_(torch.nan), "lm_head.weight holds NaN"),
    ],
)  # fmt: skip
def test_bad_weights_leave_everything_as_it_was(engine: Engine, edit: Callable[[Weights], Any], message: str) -> None:
    before, fingerprint = bits(engine.generate(PROMPTS, PARAMS, seed=7)), engine.fingerprint
    weights = tiny_weights(tiny_config("llama"), 1)
    edit(weights)
    with pytest.raises(ModelError, match=message):
        engine.update_weights(weights, version="bad")
    assert (engine.version, engine.fingerprint) == ("initial", fingerprint)
    assert bits(engine.generate(PROMPTS, PARAMS, seed=7)) == before


def test_weights_that_are_half_there_answer_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> str:
        raise EngineError("self-test: the canary gives other bits")

    monkeypatch.setattr("batchgen.engine.new_weights.prove_canary", fails)
    weights = tiny_weights(tiny_config("llama"), 1)
    with pytest.raises(EngineError, match="canary"):
        engine.update_weights(weights, version="one")
    assert engine.version == "initial"
    for call in (lambda: engine.generate(PROMPTS, PARAMS), lambda: engine.update_weights(weights, version="two")):
        with pytest.raises(EngineError, match="only partly replaced"):
            call()


def test_not_while_it_generates(engine: Engine) -> None:
    request = engine.generate({"a": "Hello"}, replace(PARAMS, n=1))[0].request

    at_work = engine._engine.generate([request, replace(request, sample_index=1)])
    next(at_work)
    with pytest.raises(EngineError, match="already generating"):
        engine.update_weights(tiny_weights(tiny_config("llama"), 1), version="one")
    at_work.close()


def test_a_prompt_that_fails_is_its_own_rollout_s_error(engine: Engine) -> None:
    rollouts = engine.generate({"bad": "", "good": "Hello", "long": "word " * 600}, replace(PARAMS, n=2))
    assert [r.completion.error_code for r in rollouts] == ["prompt_empty"] * 2 + [None] * 2 + ["prompt_overlong"] * 2
    assert [r.completion.row_key for r in rollouts] == ["bad", "bad", "good", "good", "long", "long"]
    assert bits(engine.score(rollouts)) == bits(rollouts)


def test_answers_of_a_grammar(engine: Engine) -> None:
    params = replace(
        PARAMS, n=4, max_tokens=20, ignore_eos=False, structured_outputs=StructuredOutputs(regex="[0-9]{3}")
    )
    rollouts = engine.generate({"a": "Hello"}, params)
    assert all(len(r.completion.text) == 3 and r.completion.text.isdecimal() for r in rollouts)
    assert bits(engine.score(rollouts)) == bits(rollouts)
    with pytest.raises(SpecError, match="structured_outputs"):
        engine.generate(PROMPTS, replace(params, structured_outputs=StructuredOutputs(regex="(")))


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(BatchgenError) as caught:
        call()
    return str(caught.value)


def test_what_is_asked_wrongly_is_refused(engine: Engine, folders: list[Path]) -> None:
    request = engine.generate({"a": "Hello"}, replace(PARAMS, n=1))[0].request
    assert "params.temperature" in refused(lambda: engine.generate(PROMPTS, replace(PARAMS, temperature=-1.0)))
    assert "params.n: " in refused(lambda: engine.generate(PROMPTS, replace(PARAMS, n=0)))
    assert "seed: must be" in refused(lambda: engine.generate(PROMPTS, PARAMS, seed=-1))
    assert "two requests for sample 0 of row 'a'" in refused(lambda: engine.generate([request, request]))
    assert "requests have parameters of their own" in refused(lambda: engine.generate([request], PARAMS))
    assert "did you mean 'max_num_seqs'" in refused(lambda: Engine.open(folders[0], max_num_seq=3))
    assert "an engine is one process" in refused(lambda: Engine.open(folders[0], expert_parallel_size=2))
    assert "the model has no experts" in refused(lambda: engine.generate(PROMPTS, replace(PARAMS, routed_experts=True)))
    with pytest.raises(SpecError, match="numerics"):
        Engine.open(folders[0], numerics="portable/2")
    with pytest.raises(SpecError, match=r"model\.sha256"):
        Engine.open("pypi:package==1#model.gguf")
    with pytest.raises(ModelError, match="does not exist"):
        Engine.open("nowhere")


def test_what_was_recorded_of_draws_outlives_a_score(engine: Engine) -> None:
    rollouts = engine.generate(PROMPTS, replace(PARAMS, top_p=0.5, kept_tokens=1000))
    assert all(len(each.completion.kept_tokens or ()) == len(each.completion.token_ids) > 0 for each in rollouts)
    assert engine.score(rollouts) == rollouts
    assert all(each.version_spans == ((each.version, 0, len(each.completion.token_ids)),) for each in rollouts)


def test_after_it_is_closed_nothing_is_answered(folders: list[Path]) -> None:
    with Engine.open({"path": str(folders[0]), "max_model_len": 64}, threads=1) as engine:
        assert engine.generate({"a": "word " * 80}, PARAMS)[0].completion.error_code == "prompt_overlong"
    assert refused(lambda: engine.generate(PROMPTS, PARAMS)) == "this engine is closed"
