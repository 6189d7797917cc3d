import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.bitwise import assert_bitwise
from support.tiny_models import FAMILIES, tiny_config, tiny_weights, write_tiny

from batchgen.errors import ModelError
from batchgen.models.folder import open_folder

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model", shards=3)


def refused(folder: Path, message: str) -> str:
    with pytest.raises(ModelError, match=message) as error:
        open_folder(folder)
    return error.value.where


def rewrite(file: Path, **changes: Any) -> None:
    """Replaces tensors (dots are written as __), or removes those that are None."""
    tensors = load_file(file) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_as_written(tmp_path: Path, family: str, shards: int) -> None:
    checkpoint = open_folder(write_tiny(tmp_path, family, shards=shards))
    written = tiny_weights(tiny_config(family))
    assert checkpoint.names() == list(written)
    for name, tensor in written.items():
        assert_bitwise(checkpoint.tensor(name), tensor, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_precisions_are_rounded(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = open_folder(write_tiny(tmp_path, dtype=dtype))
    for name, tensor in tiny_weights(tiny_config("llama")).items():
        assert_bitwise(checkpoint.tensor(name), tensor.to(dtype).to(torch.bfloat16), name)


def test_float32_holds_the_same_model(tmp_path: Path, folder: Path) -> None:
    other = write_tiny(tmp_path / "other", dtype=torch.float32)
    assert open_folder(other).weights_digest() == open_folder(folder).weights_digest()


def test_another_seed_is_another_model(tmp_path: Path, folder: Path) -> None:
    assert open_folder(write_tiny(tmp_path / "b", seed=1)).weights_digest() != open_folder(folder).weights_digest()


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert refused(sharded, "the shard model-00002-of-00003.safetensors is missing").endswith(INDEX)


def test_a_missing_tensor_names_its_file(folder: Path) -> None:
    rewrite(folder / SINGLE, model__norm__weight=None)
    assert refused(folder, r"tensor model\.norm\.weight is missing").endswith(SINGLE)


def test_an_unknown_tensor(folder: Path) -> None:
    rewrite(folder / SINGLE, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    assert refused(folder, r"unknown tensor model\.layers\.0\.self_attn\.q_proj\.bias").endswith(SINGLE)


def test_a_wrong_shape(sharded: Path) -> None:
    file = json.loads((sharded / INDEX).read_text())["weight_map"][NORM]
    rewrite(sharded / file, model__norm__weight=torch.ones(1, 128))
    assert refused(sharded, r"tensor model\.norm\.weight has shape \[1, 128\]").endswith(file)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_torn_file(folder: Path, size: int) -> None:
    content = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(content[:size])
    assert refused(folder, "cannot be read as safetensors").endswith(SINGLE)


def test_a_directory_in_place_of_a_shard(sharded: Path) -> None:
    shard = sharded / "model-00001-of-00003.safetensors"
    shard.unlink()
    shard.mkdir()
    refused(sharded, "the shard model-00001-of-00003.safetensors is missing")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../model.safetensors"}}'],
)
def test_a_broken_index(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    assert refused(sharded, "is not an index of shards").endswith(INDEX)


def test_an_index_that_points_to_the_wrong_shard(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][NORM] = next(f for f in index["weight_map"].values() if f != index["weight_map"][NORM])
    (sharded / INDEX).write_text(json.dumps(index))
    assert refused(sharded, rf"tensor {NORM} is not in").endswith(INDEX)


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    for number in (1, 2, 3):
        rewrite(sharded / f"model-0000{number}-of-00003.safetensors", model__norm__weight=torch.ones(64))
    refused(sharded, rf"tensor {NORM} is also in")


def test_one_file_and_shards_together_are_ambiguous(sharded: Path, tmp_path: Path) -> None:
    shutil.copy(write_tiny(tmp_path / "other") / SINGLE, sharded)
    refused(sharded, "holds both")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_not_opened(folder: Path, name: str) -> None:
    (folder / SINGLE).rename(folder / name)
    refused(folder, rf"the weights are pickled \({name}\)")


def test_no_weights_at_all(folder: Path) -> None:
    (folder / SINGLE).unlink()
    refused(folder, r"there is neither model\.safetensors nor")


def test_types_other_than_floats_are_refused(folder: Path) -> None:
    rewrite(folder / SINGLE, model__norm__weight=torch.ones(64, dtype=torch.float8_e4m3fn))
    refused(folder, rf"tensor {NORM} is stored as F8_E4M3")


def test_rotary_tables_of_old_checkpoints_are_left_out(folder: Path) -> None:
    whole = open_folder(folder).weights_digest()
    rewrite(folder / SINGLE, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    assert open_folder(folder).weights_digest() == whole


def test_a_tied_head_may_be_there_if_it_is_the_same(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, tie_word_embeddings=True)
    whole = open_folder(folder).weights_digest()
    embedding = load_file(folder / SINGLE)["model.embed_tokens.weight"]
    rewrite(folder / SINGLE, lm_head__weight=embedding.clone())
    assert open_folder(folder).weights_digest() == whole
    embedding[0, 0] += 1
    rewrite(folder / SINGLE, lm_head__weight=embedding)
    refused(folder, r"lm_head\.weight differs from model\.embed_tokens\.weight")


def test_a_file_without_its_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, r"there is no config\.json")
