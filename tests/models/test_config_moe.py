"""Configs of models with experts, as transformers reads them; what the block here does not compute is refused."""

from dataclasses import replace
from typing import Any

import pytest
from support.tiny_models import tiny_config

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig, MoeConfig, as_float32
from batchgen.models.config_json import config_from_json
from batchgen.models.weights import check_inventory, expected_tensors
from batchgen.routing import Routing


def parse(family: str, drop: str = "", **changes: Any) -> ModelConfig:
    raw = tiny_config(family, **changes)
    raw.pop(drop, None)
    return config_from_json(raw, "config.json")


def moe_of(config: ModelConfig) -> MoeConfig:
    assert config.moe is not None
    return config.moe


def test_qwen3_moe() -> None:
    config = parse("qwen3_moe")
    assert config.moe == MoeConfig(12, 96, Routing(4, "softmax", True, 1.0), False, 0, ())
    assert config.qk_norm
    assert [config.is_moe(layer) for layer in range(2)] == [True, True]


def test_dots1() -> None:
    config = parse("dots1")
    assert config.moe == MoeConfig(12, 96, Routing(4, "sigmoid", True, 1.5), True, 192, (0,))
    assert config.qk_norm
    assert [config.is_moe(layer) for layer in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({"decoder_sparse_step": 2}, (0, 2, 4)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [5]}, (0, 1, 3, 4, 5)),
        ({"mlp_only_layers": [4, 1]}, (1, 4)),
        ({"mlp_only_layers": None}, ()),
    ],
)
def test_the_dense_layers_of_qwen3_moe_are_those_of_transformers(
    changes: dict[str, Any], dense: tuple[int, ...]
) -> None:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    raw = tiny_config("qwen3_moe", num_hidden_layers=6, **changes)
    assert moe_of(config_from_json(raw, "tiny")).dense_layers == dense
    with torch.device("meta"):
        layers = Qwen3MoeForCausalLM(Qwen3MoeConfig(**raw)).model.layers
    assert dense == tuple(i for i, layer in enumerate(layers) if not hasattr(layer.mlp, "experts"))


def test_a_model_whose_layers_are_all_dense_has_no_experts() -> None:
    assert parse("qwen3_moe", mlp_only_layers=[0, 1]).moe is None
    assert parse("dots1", first_k_dense_replace=9).moe is None


def test_absent_keys_are_what_transformers_takes_them_for() -> None:
    assert not moe_of(parse("qwen3_moe", drop="norm_topk_prob")).routing.norm_topk
    assert moe_of(parse("dots1", drop="routed_scaling_factor")).routing.scale == 1.0
    assert moe_of(parse("dots1", drop="first_k_dense_replace")).dense_layers == ()
    assert moe_of(parse("dots1", n_shared_experts=None)).shared_size == 0
    assert moe_of(parse("dots1", routed_scaling_factor=2.446)).routing.scale == as_float32(2.446) != 2.446
    assert parse("qwen3_moe", drop="head_dim", hidden_size=256).head_dim == 64


def test_both_names_of_the_number_of_experts() -> None:
    whole = parse("qwen3_moe")
    assert parse("qwen3_moe", drop="num_experts", num_local_experts=12) == whole
    assert parse("qwen3_moe", num_local_experts=12) == whole
    with pytest.raises(ModelError, match="num_experts is 12 and num_local_experts is 8"):
        parse("qwen3_moe", num_local_experts=8)


def test_the_windows_of_dots1() -> None:
    """A window counts from layer max_window_layers on, unless layer_types say what each layer is."""
    assert parse("dots1", sliding_window=64, max_window_layers=1).max_context == 64
    assert parse("dots1", sliding_window=64, max_window_layers=2).max_context == 512
    assert parse("dots1", sliding_window=None, max_window_layers=0).max_context == 512
    assert parse("dots1", sliding_window=64, max_window_layers=0, layer_types=["full_attention"] * 2).max_context == 512
    assert parse("dots1", drop="sliding_window", max_window_layers=0, max_position_embeddings=9999).max_context == 4096


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("dots1", {"n_group": 8}, r"config\.json: n_group: 8 is not supported"),
        ("dots1", {"topk_group": 4}, r"config\.json: topk_group"),
        ("dots1", {"scoring_func": "softmax"}, r"scoring_func: 'softmax' is not supported"),
        ("dots1", {"topk_method": "greedy"}, r"topk_method: 'greedy' is not supported"),
        ("dots1", {"layer_types": ["full_attention", "sliding_attention"]}, "only full attention"),
        ("dots1", {"num_experts_per_tok": 13}, "13 experts for each token cannot be chosen out of 12"),
        ("qwen3_moe", {"num_experts_per_tok": 0}, "0 experts for each token"),
        ("qwen3_moe", {"num_experts": 0}, "num_experts is 0"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "inner_size is 0"),
        ("qwen3_moe", {"moe_intermediate_size": 95}, "inner_size is 95; odd"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size: unknown key"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "must be true or false"),
        ("dots1", {"routed_scaling_factor": 0.0}, "scaled by 0"),
        ("llama", {"num_experts": 8}, "num_experts: unknown key"),
    ],
)
def test_other_experts_are_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(family, **changes)


@pytest.mark.parametrize("key", ["num_experts_per_tok", "moe_intermediate_size", "num_experts"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=f"the key '{key}' is missing"):
        parse("qwen3_moe", drop=key)


@pytest.mark.parametrize("family", ["qwen3_moe", "dots1"])
def test_json_round_trip(family: str) -> None:
    config = parse(family)
    assert ModelConfig.from_json(config.to_json()) == config


def test_the_arithmetic_of_a_dense_model_says_nothing_of_experts() -> None:
    """The digests of dense models hang on it."""
    assert "moe" not in parse("qwen3").arithmetic()
    config = parse("dots1")
    moe = moe_of(config)
    for changed in (
        replace(moe, routing=replace(moe.routing, top_k=3)),
        replace(moe, routing=replace(moe.routing, norm_topk=False)),
        replace(moe, routing=replace(moe.routing, scale=1.0)),
        replace(moe, has_bias=False),
        replace(moe, dense_layers=()),
    ):
        assert replace(config, moe=changed).arithmetic() != config.arithmetic()


def test_a_count_of_experts_that_is_not_that_of_the_weights() -> None:
    config = parse("qwen3_moe")
    found = expected_tensors(config)
    check_inventory(found, config, str)
    for count in (8, 16):
        other = parse("qwen3_moe", num_experts=count)
        with pytest.raises(ModelError) as refused:
            check_inventory(found, other, str)
        assert refused.value.message == f"model.layers.0 has 12 experts, and the config says {count}"
    name = "model.layers.1.mlp.experts.7.up_proj.weight"
    with pytest.raises(ModelError, match=r"experts\.7\.up_proj\.weight is missing"):
        check_inventory({key: shape for key, shape in found.items() if key != name}, config, str)
    with pytest.raises(ModelError, match=r"gate\.weight has shape \[12, 64\], and the config says \[12, 128\]"):
        check_inventory({**found, "model.layers.0.mlp.gate.weight": (12, 64)}, config, str)
