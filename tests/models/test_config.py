import decimal
import subprocess
import sys
from dataclasses import replace

import pytest
from support.tiny_models import tiny_config

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig, RopeScaling, as_float32
from batchgen.models.config_json import config_from_json

LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


@pytest.fixture
def config() -> ModelConfig:
    return config_from_json(tiny_config("llama", rope_theta=500000.0, head_dim=128), "tiny")


def test_plain_frequencies_are_powers_of_theta(config: ModelConfig) -> None:
    frequencies = config.inverse_frequencies()
    assert len(frequencies) == 64
    assert frequencies[0] == 1.0
    assert frequencies[32] == 0.0014142135623730950  # 500000 ** -0.5, correctly rounded
    assert frequencies == pytest.approx([500000.0 ** (-i / 64) for i in range(64)], rel=1e-14)


def test_linear_scaling_divides(config: ModelConfig) -> None:
    scaled = replace(config, rope_scaling=RopeScaling("linear", 4.0))
    assert scaled.inverse_frequencies() == tuple(f / 4 for f in config.inverse_frequencies())


def test_llama3_scaling_is_that_of_transformers(config: ModelConfig) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    parameters |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(head_dim=128, rope_parameters=parameters), "cpu")
    ours = replace(config, rope_scaling=LLAMA3).inverse_frequencies()
    assert list(ours) == pytest.approx(theirs.tolist(), rel=1e-5)
    plain = config.inverse_frequencies()
    kept = sum(a == b for a, b in zip(ours, plain, strict=True))
    stretched = sum(a == b / 8 for a, b in zip(ours, plain, strict=True))
    assert kept > 0
    assert stretched > 0
    assert kept + stretched < 64  # and some are blended


@pytest.mark.parametrize("scaling", [None, LLAMA3, RopeScaling("linear", 2.0)])
def test_json_round_trip(config: ModelConfig, scaling: RopeScaling | None) -> None:
    config = replace(config, rope_scaling=scaling, eos_token_ids=(2, 5))
    assert ModelConfig.from_json(config.to_json()) == config


def test_arithmetic_leaves_out_only_what_cannot_change_a_logit(config: ModelConfig) -> None:
    limits = replace(config, max_context=7, max_position_embeddings=9, eos_token_ids=(), bos_token_id=None)
    assert limits.arithmetic() == config.arithmetic()
    for changed in (
        replace(config, rope_theta=1.0),
        replace(config, rms_norm_eps=as_float32(1e-6)),
        replace(config, rope_scaling=LLAMA3),
        replace(config, num_heads=2),
        replace(config, tie_word_embeddings=True),
    ):
        assert changed.arithmetic() != config.arithmetic()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"hidden_size": 63}, "hidden_size is 63; odd"),
        ({"head_dim": 15}, "head_dim is 15; odd"),
        ({"num_kv_heads": 3}, "4 heads cannot share 3"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_scaling": RopeScaling("linear", 0.0)}, "makes no sense"),
        ({"rope_scaling": RopeScaling("llama3", 8.0, 4.0, 1.0, 8192)}, "makes no sense"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(config: ModelConfig, change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        replace(config, **change).check("here")  # type: ignore[arg-type]


def test_the_config_needs_neither_torch_nor_the_file_formats() -> None:
    code = (
        "import sys; import batchgen.models.config, batchgen.models.config_json, batchgen.models.files; "
        "assert not {'torch', 'gguf', 'safetensors', 'pyarrow', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_frequencies_do_not_hang_on_the_caller_s_decimals() -> None:
    config = config_from_json(tiny_config("qwen3", head_dim=96), "here")
    expected = config.inverse_frequencies()
    with decimal.localcontext(prec=9):
        assert config.inverse_frequencies() == expected
