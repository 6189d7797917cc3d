"""native-sm90/1 through the whole engine: the axes of tests/determinism on the tensor cores."""

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0", allow_module_level=True)

from support.model_cases import (
    assert_same,
    generate,
    load_tiny,
    long_requests,
    make_engine,
    requests,
    with_limits,
)

from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.engine import Engine
from batchgen.engine.model_runner import ModelRunner
from batchgen.errors import EngineError
from batchgen.executor.start import open_weights
from batchgen.kernels import device, triton
from batchgen.kernels.device import TENSOR_CORES, choose
from batchgen.kernels.triton import rows
from batchgen.loader import LoadedModel
from batchgen.models.checkpoint import open_checkpoint

pytestmark = pytest.mark.gpu
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "dots1")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("native"), request.param)


@pytest.fixture(scope="module")
def engine(model: LoadedModel) -> Engine:
    return make_engine(model, numerics=TENSOR_CORES)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1, prefix_cache_blocks=0), requests())


@pytest.mark.parametrize("size", range(1, 65, 3))
def test_batch_sizes(engine: Engine, alone: dict[str, str], size: int) -> None:
    batch = [requests()[(size * 5 + i) % 64] for i in range(size)]
    assert_same(generate(with_limits(engine, max_num_seqs=size), batch), alone, f"batch of {size}")


@pytest.mark.parametrize("budget", [1, 2, 15, 17, 31, 32, 33, 64, 1000])
def test_token_budgets(engine: Engine, alone: dict[str, str], budget: int) -> None:
    how = with_limits(engine, max_num_seqs=8, max_num_batched_tokens=budget)
    assert_same(generate(how, requests(14)), alone, f"{budget}")


def test_preemption(engine: Engine) -> None:
    undisturbed = generate(with_limits(engine, max_num_seqs=1, prefix_cache_blocks=0), long_requests())
    for num_blocks in (5, 9):
        small = with_limits(engine, num_blocks=num_blocks, prefix_cache_blocks=1, max_num_batched_tokens=48)
        assert_same(generate(small, long_requests()), undisturbed, f"{num_blocks} blocks")
        assert small.stats.preemptions > 0


def test_ends_that_nobody_foresaw(engine: Engine, model: LoadedModel) -> None:
    """What was computed ahead of an end is thrown away, and others take its blocks at once."""
    often = replace(engine.model, eos_token_ids=frozenset(range(0, model.config.vocab_size, 9)))

    def ending(**limits: int) -> dict[str, str]:
        how = with_limits(engine, **limits)
        how.model = often
        return generate(how, long_requests() + requests())

    expected = ending(max_num_seqs=1, prefix_cache_blocks=0)
    for num_blocks in (6, 12, 400):
        assert_same(ending(num_blocks=num_blocks, prefix_cache_blocks=num_blocks), expected, f"{num_blocks} blocks")


def test_the_prefix_cache(engine: Engine, alone: dict[str, str]) -> None:
    twice = with_limits(engine)
    generate(twice, requests())
    assert_same(generate(twice, requests()[::-1]), alone, "a second time, from the cache")
    assert twice.stats.cached_tokens > 0


def test_ahead_and_graphs_on_and_off(engine: Engine, alone: dict[str, str]) -> None:
    runner = engine.runner
    assert isinstance(runner, AheadRunner)
    plain = with_limits(engine, looks_ahead=False)
    plain.runner = ModelRunner(runner._model, runner._cache, processed_logprobs=False)
    assert_same(generate(plain, requests()), alone, "step by step")
    assert runner.taken > 100
    assert len(runner.graphs._graphs) > 3, "the others must have had them"


def test_a_second_start_has_the_same_fingerprint(model: LoadedModel, engine: Engine) -> None:
    assert make_engine(model, numerics=TENSOR_CORES, max_num_seqs=3).fingerprint == engine.fingerprint
    portable = make_engine(model).fingerprint
    assert portable["weights_digest"] == engine.fingerprint["weights_digest"]
    assert portable["canary"] != engine.fingerprint["canary"]
    weights = open_weights(model.path, TENSOR_CORES)
    assert weights.weights_digest == open_checkpoint(model.path).weights_digest()


def test_it_is_a_profile_of_its_own(model: LoadedModel, alone: dict[str, str]) -> None:
    """Equal bits would mean that the tensor cores were never used."""
    assert generate(make_engine(model), requests()) != alone


def test_counter_a_norm_that_sees_its_company_is_found(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def bent(h: torch.Tensor, y: Any, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rows.add_rms_norm(h, y, weight, eps * (1 + 1e3 * (len(h) % 3)))

    monkeypatch.setattr(triton, "add_rms_norm", bent)
    with pytest.raises(EngineError, match=r"self-test: rms_norm .* gives other bits"):
        make_engine(model, numerics=TENSOR_CORES)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="is a profile of NVIDIA GPUs"):
        choose("cpu", TENSOR_CORES)
    monkeypatch.setattr(device, "find_spec", lambda name: None if name == "triton" else name)
    with pytest.raises(EngineError, match="needs the package triton"):
        choose("auto", TENSOR_CORES)


def test_counter_another_seed(engine: Engine, alone: dict[str, str]) -> None:
    others = [replace(request, seed=request.seed ^ 1) for request in requests()]
    assert generate(engine, others) != alone
