"""A tiny model folder as a GGUF file, written with the `gguf` package as llama.cpp's converter would."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_tiny_gguf(
    path: Path,
    folder: Path,
    kind: str = "BF16",
    *,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Writes the model of `folder` (one safetensors file) to `path`: matrices as `kind`, vectors as F32.

    `metadata` adds keys or replaces them (None removes one); `extra` adds float32 tensors. Returns `path`.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = "llama" if config["model_type"] == "mistral" else config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    fields = {
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.key_length": config.get("head_dim", config["hidden_size"] // heads),
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, fields.pop("general.architecture", arch))
    for key, value in fields.items():
        if value is not None:
            add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}
            add[type(value)](key, value)
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float()
        if arch == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            values = _interleave(values, heads if "q_proj" in name else kv_heads)
        _add_tensor(writer, _gguf_name(name), values.numpy(), kind if values.ndim == 2 else "F32")
    for name, array in (extra or {}).items():
        _add_tensor(writer, name, array, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray[Any, Any], kind: str) -> None:
    stored = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), stored), raw_dtype=stored)


def _gguf_name(name: str) -> str:
    module, leaf = name.rsplit(".", 1)
    if module in _NAMES:
        return f"{_NAMES[module]}.{leaf}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{_NAMES[inner]}.{leaf}"


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head from halves (0, 1, ..., d/2, ...) to pairs (0, d/2, 1, d/2 + 1, ...)."""
    rows = weight.view(heads, 2, -1, weight.shape[1])
    return torch.stack([rows[:, 0], rows[:, 1]], dim=2).reshape(weight.shape)
