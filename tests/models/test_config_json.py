import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import FAMILIES, tiny_config

from batchgen.errors import ModelError
from batchgen.models.config import RopeScaling, as_float32
from batchgen.models.config_json import ARCHITECTURES, config_from_json, read_config_json

LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def parse(family: str = "llama", drop: str = "", **changes: Any) -> Any:
    config = tiny_config(family, **changes)
    config.pop(drop, None)
    return config_from_json(config, "config.json")


def test_llama() -> None:
    config = parse()
    assert (config.architecture, config.qkv_bias, config.qk_norm) == ("LlamaForCausalLM", False, False)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 32)
    assert config.rms_norm_eps == as_float32(1e-5) != 1e-5
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.max_context == config.max_position_embeddings == 512


def test_family_traits() -> None:
    assert parse("qwen2").qkv_bias
    assert parse("qwen3").qk_norm
    assert parse("qwen3", head_dim=128).head_dim == 128
    assert not parse("mistral").qkv_bias


@pytest.mark.parametrize("family", FAMILIES)
def test_both_spellings_of_transformers_give_the_same_config(family: str) -> None:
    """transformers writes its own spelling, 5 today; ours in tiny_config is that of 4."""
    import transformers

    old = tiny_config(family)
    written = getattr(transformers, old["architectures"][0].replace("ForCausalLM", "Config"))(**old).to_dict()
    assert "rope_theta" not in written
    assert config_from_json(written, "new") == config_from_json(old, "old")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000, **LLAMA3}},
    ],
)
def test_llama3_scaling_in_every_spelling(rope: dict[str, Any]) -> None:
    config = parse(**rope)
    assert config.rope_scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
    assert config.rope_theta == 10000.0


def test_linear_scaling() -> None:
    assert parse(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == RopeScaling("linear", 2.0)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "known: default, linear, llama3"),
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3", **LLAMA3}}, "type is 'linear'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.0}},
            "attention_factor: unknown",
        ),
        ({"rope_scaling": [1]}, "not an object"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is 10000.0 at the top and 5.0 here"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1e4}}, "disagree"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention: unknown key"),
    ],
)
def test_other_rotary_settings_are_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(**rope)


@pytest.mark.parametrize(
    ("family", "changes", "key"),
    [
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"sliding_window": 128}, "sliding_window"),
        ("llama", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("llama", {"auto_map": {"AutoModelForCausalLM": "x.y"}}, "auto_map"),
        ("llama", {"model_type": "qwen2"}, "model_type"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("llama", {"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ("llama", {"rope_theta": 1e40}, "rope_theta"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ("llama", {"eos_token_id": [2, "3"]}, "eos_token_id"),
        ("llama", {"bos_token_id": [1]}, "bos_token_id"),
    ],
)
def test_what_changes_the_arithmetic_is_refused_by_name(family: str, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError) as error:
        parse(family, **changes)
    assert error.value.where == f"config.json: {key}"


def test_what_transformers_writes_of_a_gguf_file_is_no_arithmetic() -> None:
    assert parse(_model_name_or_path="m.gguf", unk_token_id=0) == parse()


def test_a_misspelt_key_gets_the_nearest_name() -> None:
    with pytest.raises(ModelError, match="did you mean 'attention_bias'"):
        parse(atention_bias=True)


@pytest.mark.parametrize(
    ("family", "key"),
    [("llama", "vocab_size"), ("llama", "rms_norm_eps"), ("qwen2", "num_key_value_heads"), ("qwen3", "head_dim")],
)
def test_a_missing_key_is_named(family: str, key: str) -> None:
    with pytest.raises(ModelError, match=f"the key '{key}' is missing"):
        parse(family, drop=key)


def test_a_null_switch_is_an_absent_one() -> None:
    assert parse(quantization_config=None, sliding_window=None, layer_types=None, head_dim=None) == parse()


def test_llama_without_key_value_heads_has_as_many_as_heads() -> None:
    assert parse(drop="num_key_value_heads").num_kv_heads == 4


def test_a_sliding_window_limits_the_context() -> None:
    assert parse("mistral", sliding_window=128).max_context == 128
    assert parse("mistral", sliding_window=9999).max_context == 512
    assert parse("mistral").max_context == 512
    assert parse("mistral", drop="sliding_window", max_position_embeddings=32768).max_context == 4096
    assert parse("qwen2", sliding_window=128, use_sliding_window=False).max_context == 512


def test_several_end_tokens_or_none() -> None:
    assert parse(eos_token_id=[2, 7]).eos_token_ids == (2, 7)
    assert parse(eos_token_id=None, bos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize("names", [None, [], ["GPT2LMHeadModel"], "LlamaForCausalLM", ["LlamaForCausalLM", "x"], [[]]])
def test_an_unknown_architecture_lists_the_known_ones(names: object) -> None:
    with pytest.raises(ModelError) as error:
        parse(architectures=names)
    assert all(known in str(error.value) for known in ARCHITECTURES)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_file_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config_json(tmp_path / "config.json")


def test_a_missing_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no config\.json"):
        read_config_json(tmp_path / "config.json")
    with pytest.raises(ModelError, match="cannot be read"):
        read_config_json(tmp_path)


def test_the_config_of_smollm2_as_published(tmp_path: Path) -> None:
    published = tiny_config("llama", rope_interleaved=False, is_llama_config=True, pretraining_tp=1, use_cache=True)
    published |= {"transformers.js_config": {"kv_cache_dtype": {}}, "rope_scaling": None, "attention_dropout": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert read_config_json(tmp_path / "config.json") == parse()
