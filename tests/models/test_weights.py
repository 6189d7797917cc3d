from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.bitwise import assert_bitwise
from support.tiny_models import FAMILIES, tiny_config, tiny_weights

from batchgen.errors import ModelError
from batchgen.models.config_json import config_from_json
from batchgen.models.weights import (
    Checkpoint,
    check_inventory,
    combine_digests,
    expected_tensors,
    tensor_digest,
)

CONFIG = config_from_json(tiny_config("llama"), "tiny")
NAME = "model.norm.weight"


def checkpoint(tensor: torch.Tensor) -> Checkpoint:
    return Checkpoint(CONFIG, "here", lambda name: tensor)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_names_and_shapes_are_those_that_transformers_writes(tmp_path: Path, family: str, tied: bool) -> None:
    import transformers

    raw = tiny_config(family, tie_word_embeddings=tied)
    name = raw["architectures"][0]
    model = getattr(transformers, name)(getattr(transformers, name.replace("ForCausalLM", "Config"))(**raw))
    model.save_pretrained(tmp_path)
    theirs = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert expected_tensors(config_from_json(raw, "tiny")) == theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_are_rounded_to_nearest_even(dtype: torch.dtype) -> None:
    # bfloat16 keeps 8 significant bits: the halves between neighbours go to the even one.
    values = torch.tensor([1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 1 / 1024, -1 - 1 / 256, 1 + 1 / 128], dtype=dtype)
    expected = torch.tensor([1.0, 1 + 4 / 256, 1 + 2 / 256, -1.0, 1 + 1 / 128], dtype=torch.bfloat16)
    assert_bitwise(checkpoint(values).tensor(NAME), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_values_that_bfloat16_cannot_hold_are_refused(bad: float) -> None:
    with pytest.raises(ModelError, match=r"here: tensor model\.norm\.weight holds NaN, infinity"):
        checkpoint(torch.tensor([1.0, bad])).tensor(NAME)
    checkpoint(torch.tensor([1.0, 3.3e38, -0.0])).tensor(NAME)


def test_the_inventory_must_be_exact() -> None:
    whole = expected_tensors(CONFIG)
    where = str.upper
    check_inventory(whole, CONFIG, where)
    with pytest.raises(ModelError, match=r"MODEL\.NORM\.WEIGHT: tensor model\.norm\.weight is missing"):
        check_inventory({k: v for k, v in whole.items() if k != NAME}, CONFIG, where)
    with pytest.raises(ModelError, match=r"tensor model\.embed_tokens\.weight \(and 20 more\) is missing"):
        check_inventory({}, CONFIG, where)
    with pytest.raises(ModelError, match=r"unknown tensor x\.bias"):
        check_inventory({**whole, "x.bias": (1,)}, CONFIG, where)
    with pytest.raises(ModelError, match=r"has shape \[65\], and the config says \[128\]"):
        check_inventory({**whole, NAME: (65,)}, CONFIG, where)


def test_the_digest_sees_every_bit_every_name_and_the_arithmetic(tiny_llama: Path) -> None:
    weights = tiny_weights(tiny_config("llama"))
    digests = {name: tensor_digest(tensor) for name, tensor in weights.items()}
    whole = combine_digests(CONFIG, digests)
    assert combine_digests(CONFIG, dict(reversed(digests.items()))) == whole
    flipped = weights[NAME].clone()
    flipped.view(torch.int16)[5] ^= 1
    assert combine_digests(CONFIG, {**digests, NAME: tensor_digest(flipped)}) != whole
    first, second = "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight"
    swapped = {**digests, first: digests[second], second: digests[first]}
    assert combine_digests(CONFIG, swapped) != whole
    assert combine_digests(replace(CONFIG, rope_theta=2.0), digests) != whole
    assert combine_digests(replace(CONFIG, max_context=2), digests) == whole


def test_the_digest_is_a_recorded_one() -> None:
    """Golden: manifests hold this digest, so it must not drift with a version of torch, numpy or Python."""
    weights = tiny_weights(tiny_config("llama"))
    whole = Checkpoint(CONFIG, "tiny", lambda name: weights[name]).weights_digest()
    assert whole == "785d954ad9be6fdc075827e21cbdde2ee280cfa4a4b08eedbcd8888cab5bae14"
