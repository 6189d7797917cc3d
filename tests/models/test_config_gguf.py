from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_gguf import write_tiny_gguf
from support.tiny_models import write_tiny

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig, RopeScaling
from batchgen.models.config_gguf import GGUF_ARCHITECTURES, config_from_gguf
from batchgen.models.config_json import read_config_json
from batchgen.models.gguf_file import GgufFile


def parse(folder: Path, to: Path, extra: Any = None, **metadata: Any) -> ModelConfig:
    """Dots of metadata keys are written as __ here."""
    changes = {key.replace("__", "."): value for key, value in metadata.items()}
    return config_from_gguf(GgufFile(write_tiny_gguf(to / "m.gguf", folder, metadata=changes, extra=extra)))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_equal_to_the_config_json_that_it_came_from(tmp_path: Path, family: str, tied: bool) -> None:
    folder = write_tiny(tmp_path, family, tie_word_embeddings=tied, rope_theta=1000000.0, rms_norm_eps=1e-6)
    assert parse(folder, tmp_path) == read_config_json(folder / "config.json")


def test_defaults_and_end_of_turn(tmp_path: Path, tiny_llama: Path) -> None:
    config = parse(
        tiny_llama,
        tmp_path,
        llama__attention__key_length=None,  # then it is width / heads
        llama__rope__freq_base=None,
        llama__expert_count=0,
        tokenizer__ggml__eot_token_id=7,
    )
    assert (config.head_dim, config.rope_theta, config.eos_token_ids) == (32, 10000.0, (2, 7))


def test_a_sliding_window_limits_the_context(tmp_path: Path, tiny_llama: Path) -> None:
    assert parse(tiny_llama, tmp_path, llama__attention__sliding_window=64).max_context == 64


def test_linear_scaling(tmp_path: Path, tiny_llama: Path) -> None:
    config = parse(tiny_llama, tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    assert config.rope_scaling == RopeScaling("linear", 4.0)
    assert parse(tiny_llama, tmp_path, llama__rope__scaling__type="none").rope_scaling is None


def llama3_factors(factor: float, head_dim: int = 16, theta: float = 10000.0) -> np.ndarray[Any, Any]:
    """Frequency factors as converters write them: in float32."""
    frequencies = 1 / np.float32(theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    turns = np.float32(8192) * frequencies / np.float32(2 * np.pi)
    smooth = np.clip((turns - 1) / np.float32(3), 0, 1)
    return np.asarray(1 / ((1 - smooth) / np.float32(factor) + smooth), np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_known_by_its_factors(tmp_path: Path, factor: float) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    folder = write_tiny(tmp_path, head_dim=64, rope_scaling=scaling, rope_theta=500000.0)
    extra = {"rope_freqs.weight": llama3_factors(factor, 64, 500000.0)}
    assert parse(folder, tmp_path, extra) == read_config_json(folder / "config.json")


def test_factors_of_one_change_nothing(tmp_path: Path, tiny_llama: Path) -> None:
    assert parse(tiny_llama, tmp_path, {"rope_freqs.weight": np.ones(16, np.float32)}).rope_scaling is None


@pytest.mark.parametrize(
    "factors", [np.linspace(1, 8, 16, dtype=np.float32), np.ones(15, np.float32), np.zeros(16, np.float32)]
)
def test_other_factors_are_refused(tmp_path: Path, tiny_llama: Path, factors: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        parse(tiny_llama, tmp_path, {"rope_freqs.weight": factors})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama__block_count": None}, r"llama\.block_count: the key is missing"),
        ({"llama__attention__layer_norm_rms_epsilon": None}, "rms_epsilon: the key is missing"),
        ({"llama__attention__head_count": 4.0}, "must be an integer"),
        ({"llama__rope__freq_base": 10000}, "must be a float"),
        ({"llama__rope__dimension_count": 8}, "8 differs from the head size 32"),
        ({"llama__attention__value_length": 64}, "64 differs from the head size 32"),
        ({"llama__rope__scaling__type": "yarn"}, "'yarn' is not supported"),
        ({"llama__expert_count": 8}, r"llama\.expert_count: unknown key \(its value is 8\)"),
        ({"llama__logit_scale": 2.0}, r"llama\.logit_scale: unknown key"),
        ({"llama__attention__head_count_kv": 3}, "4 heads cannot share 3"),
    ],
)
def test_refusals_name_the_key(tmp_path: Path, tiny_llama: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(tiny_llama, tmp_path, **metadata)


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path, tiny_llama: Path) -> None:
    with pytest.raises(ModelError, match="unknown architecture 'gemma2'") as error:
        parse(tiny_llama, tmp_path, general__architecture="gemma2")
    assert all(known in str(error.value) for known in GGUF_ARCHITECTURES)
