"""Tiny seeded models as Hugging Face folders: real enough that a wrong bit changes what they say.

Embeddings and projections are drawn wide, so that logits spread over several units and greedy text wanders; on flat
logits every determinism test would pass.
"""

import json
from itertools import pairwise
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from batchgen.models.config_json import config_from_json
from batchgen.models.weights import EMBEDDING, LM_HEAD, ROUTER_BIAS, Shape, expected_tensors

_ARCHITECTURES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "dots1": "Dots1",
}
FAMILIES = tuple(_ARCHITECTURES)
# Twelve experts, which neither 5 nor 8 ranks share evenly, and four of them a token: sums in which an order shows.
_EXPERTS = {"num_experts_per_tok": 4, "moe_intermediate_size": 96, "norm_topk_prob": True, "head_dim": 32}

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
_WORDS = (" the", " and", " of", " to", " in", " is", " that", " it", " for", "ing", "er", "on", "tion", " you", "    ")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model: 2 layers, width 128, 4 heads over 2; the down projection spans two K-blocks."""
    config = {
        "architectures": [_ARCHITECTURES[family] + "ForCausalLM"],
        "model_type": family,
        "vocab_size": tiny_tokenizer().get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    if family == "mistral":
        config["sliding_window"] = None
    if family == "qwen3":
        config["head_dim"] = 32
    if family == "qwen3_moe":
        config |= {**_EXPERTS, "num_experts": 12}
    if family == "dots1":
        config |= {**_EXPERTS, "n_routed_experts": 12, "n_shared_experts": 2, "first_k_dense_replace": 1}
        config |= {"routed_scaling_factor": 1.5, "sliding_window": None}
    return {**config, **changes}


def tiny_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """bfloat16 tensors (of a router's bias float32) under their Hugging Face names, a function of `seed` alone."""
    bits = np.random.PCG64(seed)
    shapes = expected_tensors(config_from_json(config, "tiny"))
    drawn = {name: _draw(name, shape, bits) for name, shape in shapes.items()}
    return {name: as_stored(name, tensor, torch.bfloat16) for name, tensor in drawn.items()}


def as_stored(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In `dtype`, but for the bias of a router, which every checkpoint holds in float32."""
    return tensor.to(torch.float32 if name.endswith(ROUTER_BIAS) else dtype)


def write_tiny(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    **changes: Any,
) -> Path:
    """Writes a whole model folder and returns it; `changes` go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **changes)
    _write_json(folder / "config.json", config)
    write_weights(folder, {name: as_stored(name, t, dtype) for name, t in tiny_weights(config, seed).items()}, shards)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
        "unk_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    return folder


def write_weights(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> None:
    """model.safetensors, or that many shards and their index; tensors are dealt out in turn."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    home = {name: files[i % shards] for i, name in enumerate(tensors)}
    for file in files:
        part = {name: tensor for name, tensor in tensors.items() if home[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    size = sum(t.nbytes for t in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": home})


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE: 3 special tokens, 256 bytes, and the merges that spell a few common words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        pieces = list(word.replace(" ", "Ġ"))
        while len(pieces) > 1:  # left to right, but by merges that are there already
            known = next((i for i, pair in enumerate(pairwise(pieces)) if pair in merges), None)
            at = 0 if known is None else known
            if known is None:
                merges.append((pieces[0], pieces[1]))
            pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
    tokens = [*SPECIAL, *alphabet, *dict.fromkeys("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return tokenizer


def _draw(name: str, shape: Shape, bits: np.random.PCG64) -> torch.Tensor:
    """Near-normal numbers out of integer sums, so that they are the same on every machine and numpy."""
    quarters = bits.random_raw(prod(shape)).view(np.uint16).reshape(-1, 4).astype(np.int64)
    noise = torch.from_numpy((quarters.sum(axis=1) - 2 * 65535) / (65536 / sqrt(3))).view(shape)
    if name.endswith("norm.weight"):
        return 1 + 0.2 * noise
    if name.endswith(".bias"):
        return 0.5 * noise
    if name.endswith(ROUTER_BIAS):
        return 0.1 * noise
    # A gain of 1.5 a projection, and a head that gives logits a deviation near 3.
    gain = 3.0 if name in (LM_HEAD, EMBEDDING) else 1.5
    return noise * (gain / sqrt(shape[-1]))


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
