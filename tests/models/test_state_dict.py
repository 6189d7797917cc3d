"""Weights in the place of others: as if the model had been opened with them, and refused as a whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bitwise import assert_bitwise
from support.forward import position_logits
from support.tiny_models import tiny_config, tiny_weights, write_tiny

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig
from batchgen.models.config_json import config_from_json
from batchgen.models.decoder import Decoder
from batchgen.models.folder import open_folder
from batchgen.models.fused import fused
from batchgen.models.packed import PackedWeights
from batchgen.models.state_dict import checkpoint_of
from batchgen.models.weights import EMBEDDING, LM_HEAD

TOKENS = [5, 9, 60, 33, 9, 120, 7]
Weights = dict[str, torch.Tensor]


def decoder_of(folder: Path) -> tuple[Decoder, str]:
    weights = PackedWeights.open_or_build(lambda: open_folder(folder), folder / "cache", "key")
    return Decoder(weights.config, weights.tensors, 64), weights.weights_digest


def config_of(family: str = "llama", **changes: Any) -> ModelConfig:
    return config_from_json(tiny_config(family, **changes), "tiny")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "dots1"])
def test_as_if_it_had_been_opened_with_them(tmp_path: Path, family: str) -> None:
    old, old_digest = decoder_of(write_tiny(tmp_path / "old", family))
    new, new_digest = decoder_of(write_tiny(tmp_path / "new", family, seed=1))
    before, wanted = position_logits(old, TOKENS, []), position_logits(new, TOKENS, [])
    assert not torch.equal(before, wanted)
    digest = old.replace_weights(checkpoint_of(tiny_weights(tiny_config(family), 1), old.config, "weights"))
    assert digest == new_digest != old_digest
    assert_bitwise(position_logits(old, TOKENS, []), wanted, "after the update")


def test_float32_is_rounded_as_in_a_file(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "wide", dtype=torch.float32)
    wide = {name: tensor.float().requires_grad_() for name, tensor in tiny_weights(tiny_config("llama")).items()}
    decoder, digest = decoder_of(folder)
    assert decoder.replace_weights(checkpoint_of(wide, decoder.config, "weights")) == digest


def test_a_tied_head_may_be_there_too() -> None:
    config = config_of(tie_word_embeddings=True)
    weights = tiny_weights(tiny_config("llama", tie_word_embeddings=True))
    checkpoint_of(weights | {LM_HEAD: weights[EMBEDDING]}, config, "weights")
    with pytest.raises(ModelError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        checkpoint_of(weights | {LM_HEAD: weights[EMBEDDING] * 2}, config, "weights")


def without(name: str) -> Callable[[Weights], Any]:
    return lambda weights: weights.pop(name)


def put(name: str, value: Any) -> Callable[[Weights], Any]:
    return lambda weights: weights.update({name: value})


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without(NORM), "tensor model.norm.weight is missing"),
        (put("model.bias", torch.zeros(3)), "unknown tensor model.bias"),
        (put(NORM, torch.ones(127)), r"tensor model.norm.weight has shape \[127\], and the config says \[128\]"),
        (put(NORM, torch.ones(128, dtype=torch.int32)), "tensor model.norm.weight is torch.int32"),
        (put(NORM, [1.0] * 128), "model.norm.weight is a list, and no tensor"),
        (put(NORM, torch.full((128,), torch.nan)), "tensor model.norm.weight holds NaN"),
        (put(NORM, torch.full((128,), 3.4e38)), "too large for bfloat16"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_changes(edit: Callable[[Weights], Any], message: str) -> None:
    weights = tiny_weights(tiny_config("llama"), 1)
    edit(weights)
    with pytest.raises(ModelError, match=message):
        checkpoint_of(weights, config_of(), "weights")


def test_counter_a_tensor_that_stays_behind_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that forgets the head gives other logits."""
    monkeypatch.setattr(
        "batchgen.models.state_dict.fused", lambda *given: (pair for pair in fused(*given) if pair[0] != "lm_head")
    )
    with pytest.raises(AssertionError):
        test_as_if_it_had_been_opened_with_them(tmp_path, "llama")
