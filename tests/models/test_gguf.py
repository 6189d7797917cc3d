import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.bitwise import assert_bitwise
from support.tiny_gguf import write_tiny_gguf
from support.tiny_models import tiny_config, tiny_weights, write_tiny

from batchgen.errors import ModelError
from batchgen.models.folder import open_folder
from batchgen.models.gguf import open_gguf


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["BF16", "F32"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_same_tensors_and_digest_as_the_folder(tmp_path: Path, family: str, kind: str, tied: bool) -> None:
    """q and k of the llama architecture lie interleaved in the file; a wrong way back would show here."""
    folder = write_tiny(tmp_path / "model", family, tie_word_embeddings=tied, head_dim=16)
    checkpoint = open_gguf(write_tiny_gguf(tmp_path / "m.gguf", folder, kind))
    for name, tensor in tiny_weights(tiny_config(family, tie_word_embeddings=tied, head_dim=16)).items():
        assert_bitwise(checkpoint.tensor(name), tensor, name)
    assert checkpoint.weights_digest() == open_folder(folder).weights_digest()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16"])
def test_quantised_tensors_are_rounded_once(tmp_path: Path, kind: str) -> None:
    folder = write_tiny(tmp_path / "model", "qwen2")
    checkpoint = open_gguf(write_tiny_gguf(tmp_path / "m.gguf", folder, kind))
    stored = gguf.GGMLQuantizationType[kind]
    for name, tensor in tiny_weights(tiny_config("qwen2")).items():
        if tensor.ndim == 2:
            values = gguf.quants.dequantize(gguf.quants.quantize(tensor.float().numpy(), stored), stored)
            assert_bitwise(checkpoint.tensor(name), torch.from_numpy(values).to(torch.bfloat16), name)
    assert checkpoint.weights_digest() != open_folder(folder).weights_digest()


@pytest.mark.model
@pytest.mark.slow
def test_the_quickstart_model_is_what_transformers_makes_of_it(smollm: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.from_pretrained(smollm.parent, gguf_file=smollm.name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        theirs = load_gguf_checkpoint(smollm, return_tensors=True, model_to_load=model)["tensors"]
    checkpoint = open_gguf(smollm)
    assert sorted(checkpoint.names()) == sorted(theirs)
    for name in checkpoint.names():
        assert_bitwise(checkpoint.tensor(name), theirs[name].to(torch.bfloat16), name)


@pytest.mark.model
def test_the_digest_of_the_quickstart_model_is_the_recorded_one(smollm: Path) -> None:
    digest = "f6dce19e6dd1ed24adb6afb7f50bc3ed0ee66fb7e4dce78270352f02174b2680"
    assert open_gguf(smollm).weights_digest() == digest


def test_an_unknown_tensor_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    extra = {"blk.0.attn_q.bias": np.ones(64, np.float32)}
    with pytest.raises(ModelError, match=r"m\.gguf: unknown tensor model\.layers\.0\.self_attn\.q_proj\.bias"):
        open_gguf(write_tiny_gguf(tmp_path / "m.gguf", tiny_llama, extra=extra))


def test_a_tensor_without_a_counterpart_keeps_its_name(tmp_path: Path, tiny_llama: Path) -> None:
    extra = {"blk.0.ssm_a.weight": np.ones(64, np.float32)}
    with pytest.raises(ModelError, match=r"unknown tensor blk\.0\.ssm_a\.weight"):
        open_gguf(write_tiny_gguf(tmp_path / "m.gguf", tiny_llama, extra=extra))


def test_a_missing_layer_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor model\.layers\.2\.input_layernorm\.weight \(and 8 more\) is missing"):
        open_gguf(write_tiny_gguf(tmp_path / "m.gguf", tiny_llama, metadata={"llama.block_count": 3}))


def test_a_wrong_shape_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    with pytest.raises(ModelError, match=r"and the config says \[100, 128\]"):
        open_gguf(write_tiny_gguf(tmp_path / "m.gguf", tiny_llama, metadata={"llama.feed_forward_length": 100}))
