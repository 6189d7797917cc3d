"""portable/1 through the whole engine on a GPU: the bytes that it has on a CPU, however it is run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_cases import MAX_MODEL_LEN, assert_same, generate, load_tiny, long_requests, requests, with_limits
from support.on_gpu import GPU

from batchgen.engine.admission import ModelLimits
from batchgen.engine.engine import Engine
from batchgen.engine.kv_cache import block_bytes
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.scheduler import Limits
from batchgen.engine.self_test import SelfTest, self_test
from batchgen.executor.start import open_weights
from batchgen.kernels.device import CPU, choose, describe, free_bytes
from batchgen.kernels.golden import GOLDEN, check_profile
from batchgen.loader import LoadedModel
from batchgen.models.decoder import Decoder

pytestmark = GPU
FAMILIES = ("llama", "qwen2", "qwen3")


def start(model: LoadedModel, device: torch.device, *, num_blocks: int = 400, **limits: Any) -> tuple[Engine, SelfTest]:
    """An engine without a job around it, and its proof."""
    decoder = Decoder(model.config, open_weights(model.path).tensors, MAX_MODEL_LEN, device=device)
    proof = self_test(decoder, 256)
    runner = ModelRunner(decoder, decoder.new_cache(num_blocks), processed_logprobs=False)
    of_model = ModelLimits(model.config.vocab_size, MAX_MODEL_LEN, model.eos_token_ids)
    how: dict[str, Any] = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "prefix_cache_blocks": num_blocks // 4,
    } | limits
    return Engine(runner, model.tokenizer, of_model, Limits(num_blocks=num_blocks, **how), {}), proof


@pytest.fixture(scope="module")
def gpu() -> torch.device:
    return choose("cuda", "portable/1")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("gpu"), request.param)


@pytest.fixture(scope="module")
def on_cpu(model: LoadedModel) -> tuple[dict[str, str], dict[str, str], SelfTest]:
    """What each request gives alone on a CPU, the long ones too, and the proof."""
    engine, proof = start(model, CPU, max_num_seqs=1, prefix_cache_blocks=0)
    return generate(engine, requests()), generate(engine, long_requests()), proof


@pytest.fixture(scope="module")
def engine(model: LoadedModel, gpu: torch.device) -> Engine:
    return start(model, gpu)[0]


def test_the_kernels_are_those_of_the_profile(gpu: torch.device) -> None:
    assert check_profile("portable/1", gpu) == GOLDEN["portable/1"]


def test_the_canary_is_of_no_device(model: LoadedModel, gpu: torch.device, on_cpu: Any) -> None:
    assert start(model, gpu)[1].canary == on_cpu[2].canary


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 17, 33, 64])
def test_every_request_gives_what_it_gives_on_a_cpu(engine: Engine, on_cpu: Any, size: int) -> None:
    assert_same(generate(with_limits(engine, max_num_seqs=size), requests()), on_cpu[0], f"{size} at once")


@pytest.mark.parametrize("budget", [1, 15, 31, 32, 33, 64, 1000])
def test_chunks_cannot_be_seen(engine: Engine, on_cpu: Any, budget: int) -> None:
    how = with_limits(engine, max_num_batched_tokens=budget)
    assert_same(generate(how, requests(14)), on_cpu[0], f"{budget} tokens a step")


def test_preemption_cannot_be_seen(engine: Engine, on_cpu: Any) -> None:
    for num_blocks in (5, 9):
        small = with_limits(engine, num_blocks=num_blocks, prefix_cache_blocks=1, max_num_batched_tokens=48)
        assert_same(generate(small, long_requests()), on_cpu[1], f"{num_blocks} blocks")
        assert small.stats.preemptions > 0


def test_the_prefix_cache_cannot_be_seen(engine: Engine, on_cpu: Any) -> None:
    twice = with_limits(engine)
    generate(twice, requests())
    assert_same(generate(twice, requests()[::-1]), on_cpu[0], "a second time, from the cache")
    assert twice.stats.cached_tokens > 0
    assert_same(generate(with_limits(engine, prefix_cache_blocks=0), requests()), on_cpu[0], "without a cache")


def test_counter_one_seed_more_moves_the_answers(engine: Engine, on_cpu: Any) -> None:
    others = [replace(request, seed=request.seed ^ 1) for request in requests()]
    assert generate(engine, others) != on_cpu[0]


def test_what_it_says_of_itself(gpu: torch.device, tmp_path: Path) -> None:
    said = describe(gpu)
    assert said["device"] == torch.cuda.get_device_name()
    assert {"compute_capability", "driver", "torch", "cuda"} < said.keys()
    assert 0 < free_bytes(gpu) <= torch.cuda.get_device_properties(gpu).total_memory
    assert block_bytes(load_tiny(tmp_path).config) < free_bytes(gpu)
