"""A small mixture of experts, for trying ranks out: a model folder of 2 MB whose bytes are the same on every machine.

    python examples/make_tiny_moe.py [FOLDER]
    batchgen run jobs/moe.yaml --expert-parallel-size 8

Its weights are drawn, so what it writes is noise; its layers are those of Qwen3-MoE: 16 experts, four for each token.
"""

import json
import sys
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from batchgen.models.config_json import config_from_json
from batchgen.models.weights import expected_tensors

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": len(SPECIAL) + 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG)
    bits = np.random.PCG64(2026)
    shapes = expected_tensors(config_from_json(CONFIG, "tiny-moe"))
    save_file(
        {name: drawn(name, shape, bits) for name, shape in shapes.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    bytes_alone().save(str(folder / "tokenizer.json"))
    tokenizer = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer})
    print(folder)


def drawn(name: str, shape: tuple[int, ...], bits: np.random.PCG64) -> torch.Tensor:
    """Near-normal numbers, bfloat16, out of integer sums: no library's normal distribution is the same for ever."""
    quarters = bits.random_raw(prod(shape)).view(np.uint16).reshape(-1, 4).astype(np.int64)
    noise = torch.from_numpy((quarters.sum(axis=1) - 2 * 65535) / (65536 / sqrt(3))).view(shape)
    if name.endswith("norm.weight"):
        return (1 + 0.2 * noise).to(torch.bfloat16)
    gain = 3.0 if name in ("model.embed_tokens.weight", "lm_head.weight") else 1.5
    return (noise * (gain / sqrt(shape[-1]))).to(torch.bfloat16)


def bytes_alone() -> Tokenizer:
    """A token for each byte, after the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([*SPECIAL, *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return tokenizer


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tiny-moe")
