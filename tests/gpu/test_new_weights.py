"""New weights on a GPU, in place, where CUDA graphs look for them: as if the engine had been opened with them."""

from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from support.model_cases import as_bits
from support.tiny_models import tiny_config, tiny_weights, write_tiny

from batchgen import Engine, SamplingParams
from batchgen.rollout import Prompt

pytestmark = pytest.mark.gpu
PARAMS = SamplingParams(n=8, temperature=0.9, max_tokens=40, logprobs=2, ignore_eos=True)
PROMPTS: dict[str, Prompt] = {f"p{i}": f"Prompt number {i}, " * (i + 1) for i in range(6)}


def said(engine: Engine) -> list[str]:
    return [as_bits(rollout.completion) for rollout in engine.generate(PROMPTS, PARAMS, seed=7)]


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("numerics", ["portable/1", "native-sm90/1"])
def test_as_if_opened_with_them(tmp_path: Path, family: str, numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if numerics == "native-sm90/1" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    old, new = (write_tiny(tmp_path / f"model-{seed}", family, seed=seed) for seed in range(2))
    with Engine.open(new, numerics=numerics, device="cuda") as engine:
        wanted, fingerprint = said(engine), engine.fingerprint
    with Engine.open(old, numerics=numerics, device="cuda") as engine:
        assert said(engine) != wanted
        weights = {name: tensor.cuda() for name, tensor in tiny_weights(tiny_config(family), 1).items()}
        engine.update_weights(weights, version="one")
        assert said(engine) == wanted
        assert engine.fingerprint == fingerprint
        rollouts = engine.generate(PROMPTS, PARAMS, seed=7)
        assert [as_bits(r.completion) for r in engine.score(rollouts)] == [as_bits(r.completion) for r in rollouts]
