"""config.json of a Hugging Face folder -> ModelConfig. Standard library only.

Every key is either read, known not to change the arithmetic of inference, known with the one value that is
supported, or refused: a setting that nobody looked at would change answers in silence.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from batchgen.errors import ModelError, nearest
from batchgen.models.config import ModelConfig, RopeScaling, as_float32


class _Family(NamedTuple):
    model_type: str
    qkv_bias: bool = False
    qk_norm: bool = False


ARCHITECTURES = {
    "LlamaForCausalLM": _Family("llama"),
    "MistralForCausalLM": _Family("mistral"),
    "Qwen2ForCausalLM": _Family("qwen2", qkv_bias=True),
    "Qwen3ForCausalLM": _Family("qwen3", qk_norm=True),
}

# Training, bookkeeping, generation defaults (which come from the job alone) and what the tokenizer reads for itself.
_NEUTRAL = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures attention_dropout bad_words_ids
    begin_suppress_tokens chunk_size_feed_forward decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id id2label initializer_range is_decoder is_llama_config label2id length_penalty max_length
    max_window_layers min_length model_type name_or_path no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp
    problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16
    use_cache
    """.split()  # noqa: SIM905
)

# Keys that change the arithmetic, with the only value that is supported. null means the same as absent.
_FIXED: dict[str, object] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "cross_attention_hidden_size": None,
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
    "quantization_config": None,
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
    "use_sliding_window": False,
}


def read_config_json(path: Path) -> ModelConfig:
    """Reads config.json at `path`, in the spelling of transformers 4 or 5.

    Raises ModelError if it is missing, is not JSON, names an unknown architecture, or asks for arithmetic
    that is not supported.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "a model folder holds config.json, safetensors files and tokenizer.json"
        raise ModelError("there is no config.json", where=str(path.parent), hint=hint) from None
    except (OSError, ValueError) as e:
        raise ModelError(f"cannot be read as JSON: {e}", where=str(path)) from e
    if not isinstance(raw, dict):
        raise ModelError("is not a JSON object", where=str(path))
    return config_from_json(raw, str(path))


def config_from_json(raw: dict[str, Any], where: str) -> ModelConfig:
    """As `read_config_json`, from the parsed object; `where` names it in errors."""
    architecture, family = _architecture(raw, where)
    fields = _Fields(raw, where)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    positions = fields.integer("max_position_embeddings")
    kv_heads = fields.integer("num_key_value_heads", heads if family.model_type == "llama" else None)
    # Absent, it is hidden_size / heads, but 128 in Qwen3: there it has to be said.
    head_dim = fields.integer("head_dim", hidden // max(heads, 1) if family.model_type != "qwen3" else None)
    theta, scaling = _rope(fields)
    bos = fields.take("bos_token_id", None)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.float32("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=positions,
        max_context=min(positions, _window(fields, family, positions)),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        bos_token_id=None if bos is None else fields.as_integer("bos_token_id", bos),
        eos_token_ids=fields.ids("eos_token_id"),
    )
    fields.finish()
    return config.check(where)


def _architecture(raw: dict[str, Any], where: str) -> tuple[str, _Family]:
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in list(ARCHITECTURES):
        known = f"known: {', '.join(ARCHITECTURES)}"
        raise ModelError(f"unknown architecture {json.dumps(names)}", where=f"{where}: architectures", hint=known)
    family = ARCHITECTURES[names[0]]
    if raw.get("model_type", family.model_type) != family.model_type:
        raise ModelError(f"{raw['model_type']!r} does not go with {names[0]}", where=f"{where}: model_type")
    return names[0], family


def _window(fields: "_Fields", family: _Family, positions: int) -> int:
    """The longest context in which every token still attends to all before it."""
    if any(kind != "full_attention" for kind in fields.strings("layer_types")):
        raise ModelError("only full attention is supported", where=f"{fields.where}: layer_types")
    if family.model_type == "mistral":  # the family's default, where the key is absent, is a window of 4096
        window = fields.take("sliding_window", 4096)
        return positions if window is None else fields.as_integer("sliding_window", window)
    window = fields.take("sliding_window", None)
    if family.model_type == "llama" and window is not None:
        raise ModelError("Llama has no sliding window", where=f"{fields.where}: sliding_window")
    return positions  # Qwen: a window counts only with use_sliding_window, which is refused


def _rope(fields: "_Fields") -> tuple[float, RopeScaling | None]:
    """Theta and scaling from `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    old, new = fields.take("rope_scaling", None), fields.take("rope_parameters", None)
    name = "rope_scaling" if new is None else "rope_parameters"
    table = old if new is None else new
    where = f"{fields.where}: {name}"
    if old is not None and new is not None and old != new:
        raise ModelError("rope_scaling and rope_parameters disagree", where=where)
    if not isinstance(table, dict | None):
        raise ModelError("is not an object", where=where)
    rope = _Fields(table or {}, where)
    top, inner = fields.take("rope_theta", None), rope.take("rope_theta", None)
    if top is not None and inner is not None and top != inner:
        raise ModelError(f"rope_theta is {top} at the top and {inner} here", where=where)
    theta = fields.as_float32("rope_theta", next((t for t in (top, inner) if t is not None), 10000.0))
    legacy = rope.take("type", None)
    kind = rope.take("rope_type", legacy or "default")
    if legacy is not None and legacy != kind:
        raise ModelError(f"type is {legacy!r} and rope_type is {kind!r}", where=where)
    scaling = _scaling(kind, rope)
    rope.finish()
    return theta, scaling


def _scaling(kind: object, rope: "_Fields") -> RopeScaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return RopeScaling("linear", rope.float32("factor"))
        case "llama3":
            return RopeScaling(
                "llama3",
                rope.float32("factor"),
                rope.float32("low_freq_factor"),
                rope.float32("high_freq_factor"),
                rope.integer("original_max_position_embeddings"),
            )
    where, known = f"{rope.where}: rope_type", "known: default, linear, llama3"
    raise ModelError(f"{kind!r} is not supported", where=where, hint=known)


class _Fields:
    """Takes typed fields out of a JSON object, so that what is left at the end is what nobody understood."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._rest, self.where = dict(raw), where

    def take(self, name: str, default: Any) -> Any:
        return self._rest.pop(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._rest.pop(name, None)
        return self.as_integer(name, default if value is None else value)

    def as_integer(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, "an integer", value)
        return value

    def float32(self, name: str) -> float:
        return self.as_float32(name, self._rest.pop(name, None))

    def as_float32(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, "a number", value)
        try:
            return as_float32(value)
        except OverflowError:
            self._refuse(name, "a float32", value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._rest.pop(name, default)
        if not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def strings(self, name: str) -> list[str]:
        value = self._rest.pop(name, None)
        if value is not None and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            self._refuse(name, "a list of strings", value)
        return value or []

    def ids(self, name: str) -> tuple[int, ...]:
        value = self._rest.pop(name, None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(self.as_integer(name, v) for v in values)

    def finish(self) -> None:
        """Raises ModelError for the first key that is left and may change the arithmetic."""
        for name, value in sorted(self._rest.items()):
            if name in _NEUTRAL:
                continue
            where = f"{self.where}: {name}"
            if name not in _FIXED:
                hint = f"a key that may change the answers is never skipped; {nearest(name, _NEUTRAL | _FIXED.keys())}"
                raise ModelError("unknown key", where=where, hint=hint)
            if value is not None and value != _FIXED[name]:
                only = "absent" if _FIXED[name] is None else json.dumps(_FIXED[name])
                raise ModelError(f"{json.dumps(value)[:80]} is not supported", where=where, hint=f"it must be {only}")

    def _refuse(self, name: str, wanted: str, value: object) -> NoReturn:
        if value is None:
            raise ModelError(f"the key {name!r} is missing", where=self.where)
        raise ModelError(f"must be {wanted}, not {json.dumps(value)[:80]}", where=f"{self.where}: {name}")
