"""Metadata of a GGUF file -> ModelConfig. No torch.

As with config.json, a key of the model's own section that nobody understands is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig, RopeScaling, as_float32
from batchgen.models.gguf_file import GgufFile

# general.architecture -> (Hugging Face class, q/k/v have a bias, q and k are normed). Mistral is stored as "llama".
GGUF_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", False, False),
    "qwen2": ("Qwen2ForCausalLM", True, False),
    "qwen3": ("Qwen3ForCausalLM", False, True),
}

ROPE_FACTORS = "rope_freqs.weight"  # float32 [head_dim / 2]: plain frequency / stretched frequency

# Every Llama 3 was trained with these; its GGUF keeps only the factors that follow from them.
_LLAMA3 = RopeScaling("llama3", 1.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The config that `file` describes, equal to the one of the config.json that it was made from.

    Raises ModelError for an unknown architecture, a missing key, or arithmetic that is not supported.
    """
    meta = file.metadata
    name = meta.get("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        known = f"known: {', '.join(GGUF_ARCHITECTURES)}"
        raise ModelError(f"unknown architecture {name!r}", where=f"{file.path}: general.architecture", hint=known)
    architecture, qkv_bias, qk_norm = GGUF_ARCHITECTURES[name]
    section = _Section(meta, name, str(file.path))
    heads, hidden = section.integer("attention.head_count"), section.integer("embedding_length")
    head_dim = section.integer("attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (width := section.integer(key, head_dim)) != head_dim:
            section.refuse(key, f"{width} differs from the head size {head_dim}")
    positions = section.integer("context_length")
    config = ModelConfig(
        architecture=architecture,
        vocab_size=section.integer("vocab_size", _rows(file, "token_embd.weight")),
        hidden_size=hidden,
        intermediate_size=section.integer("feed_forward_length"),
        num_layers=section.integer("block_count"),
        num_heads=heads,
        num_kv_heads=section.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=section.float32("attention.layer_norm_rms_epsilon"),
        rope_theta=section.float32("rope.freq_base", 10000.0),
        rope_scaling=_scaling(section),
        max_position_embeddings=positions,
        max_context=min(positions, section.integer("attention.sliding_window", positions)),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos(meta),
    ).check(str(file.path))
    section.finish()
    return _with_factors(config, file) if ROPE_FACTORS in file.tensors else config


def _rows(file: GgufFile, name: str) -> int:
    if name not in file.tensors:
        raise ModelError(f"tensor {name} is missing", where=str(file.path))
    return file.tensors[name].shape[0]


def _eos(meta: Mapping[str, Any]) -> tuple[int, ...]:
    """End of text, then end of turn where it is another token."""
    ids = (meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _scaling(section: "_Section") -> RopeScaling | None:
    kind = section.take("rope.scaling.type", "none")
    factor = section.float32("rope.scaling.factor", 1.0)
    section.take("rope.scaling.original_context_length", None)  # says how it was trained
    section.take("rope.scaling.finetuned", None)
    if kind not in ("none", "linear"):
        section.refuse("rope.scaling.type", f"{kind!r} is not supported; none and linear are")
    return RopeScaling("linear", factor) if kind == "linear" else None


def _with_factors(config: ModelConfig, file: GgufFile) -> ModelConfig:
    """`config` with the Llama 3 scaling whose factors `file` holds."""
    where = f"{file.path}: {ROPE_FACTORS}"
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.type.name != "F32" or tensor.shape != (config.head_dim // 2,) or config.rope_scaling:
        raise ModelError(f"is {tensor.type.name} {list(tensor.shape)}; it should be F32 [head size / 2]", where=where)
    stored = file.data(ROPE_FACTORS).view("<f4").astype(np.float64)
    scaled = replace(config, rope_scaling=replace(_LLAMA3, factor=float(stored.max()))).check(where)
    expected = np.array(config.inverse_frequencies()) / np.array(scaled.inverse_frequencies())
    # The stored factors come from float32 arithmetic; another rule would be off by far more.
    if not np.allclose(stored, expected, rtol=1e-4, atol=0):
        raise ModelError("are not the factors of Llama 3; other frequency factors are not supported", where=where)
    return config if stored.max() == 1 else scaled


class _Section:
    """Takes typed values out of the keys that begin with the architecture's name."""

    def __init__(self, meta: Mapping[str, Any], name: str, path: str) -> None:
        self._path, self._prefix = path, name + "."
        self._rest = {k.removeprefix(self._prefix): v for k, v in meta.items() if k.startswith(self._prefix)}

    def refuse(self, key: str, message: str) -> NoReturn:
        raise ModelError(message, where=f"{self._path}: {self._prefix}{key}")

    def take(self, key: str, default: Any) -> Any:
        return self._rest.pop(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, "the key is missing" if value is None else f"must be an integer, not {value!r}")
        return value

    def float32(self, key: str, default: float | None = None) -> float:
        value = self.take(key, default)
        if not isinstance(value, float):
            self.refuse(key, "the key is missing" if value is None else f"must be a float, not {value!r}")
        return as_float32(value)

    def finish(self) -> None:
        """Raises ModelError for a key that is left, unless it switches a feature off."""
        for key, value in self._rest.items():
            off = key in ("expert_count", "expert_used_count") and value == 0
            if not off:
                self.refuse(key, f"unknown key (its value is {value!r}); it may change the answers")
