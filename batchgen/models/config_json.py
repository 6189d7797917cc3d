"""config.json of a Hugging Face folder -> ModelConfig. Standard library only.

What a key means where it is absent is what transformers takes it for; json_fields.py refuses those that nobody reads.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig, MoeConfig, RopeScaling
from batchgen.models.json_fields import Fields
from batchgen.routing import Routing


class _Family(NamedTuple):
    model_type: str
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim_is_said: bool = False  # absent, it is not hidden_size / heads


ARCHITECTURES = {
    "LlamaForCausalLM": _Family("llama"),
    "MistralForCausalLM": _Family("mistral"),
    "Qwen2ForCausalLM": _Family("qwen2", qkv_bias=True),
    "Qwen3ForCausalLM": _Family("qwen3", qk_norm=True, head_dim_is_said=True),
    "Qwen3MoeForCausalLM": _Family("qwen3_moe", qk_norm=True),
    "Dots1ForCausalLM": _Family("dots1", qk_norm=True),
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
    fields = Fields(raw, where)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    positions = fields.integer("max_position_embeddings")
    kv_heads = fields.integer("num_key_value_heads", heads if family.model_type == "llama" else None)
    head_dim = fields.integer("head_dim", None if family.head_dim_is_said else hidden // max(heads, 1))
    layers = fields.integer("num_hidden_layers")
    theta, scaling = _rope(fields)
    bos = fields.take("bos_token_id", None)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.float32("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=positions,
        max_context=min(positions, _window(fields, family, positions, layers)),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        bos_token_id=None if bos is None else fields.as_integer("bos_token_id", bos),
        eos_token_ids=fields.ids("eos_token_id"),
        moe=_moe(fields, family, layers),
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


def _moe(fields: Fields, family: _Family, layers: int) -> MoeConfig | None:
    """The experts of the families that have any; None too where every layer is a dense one."""
    match family.model_type:
        case "qwen3_moe":
            only, step = fields.ids("mlp_only_layers"), fields.integer("decoder_sparse_step", 1)
            if step < 1:
                raise ModelError(f"{step} is less than 1", where=f"{fields.where}: decoder_sparse_step")
            dense = tuple(i for i in range(layers) if i in only or (i + 1) % step)
            experts, shared, scale = fields.alias("num_experts", "num_local_experts"), 0, 1.0
        case "dots1":
            dense = tuple(range(min(fields.integer("first_k_dense_replace", 0), layers)))
            experts, shared = (
                fields.alias("n_routed_experts", "num_local_experts"),
                fields.integer("n_shared_experts", 0),
            )
            scale = fields.as_float32("routed_scaling_factor", fields.take("routed_scaling_factor", 1.0))
            for name in ("scoring_func", "topk_method"):  # of the model's own code; this is what all of them compute
                if (value := fields.take(name, None)) not in (None, "noaux_tc", "sigmoid"):
                    hint = "it must be absent, noaux_tc or sigmoid"
                    raise ModelError(f"{value!r} is not supported", where=f"{fields.where}: {name}", hint=hint)
        case _:
            return None
    inner = fields.integer("moe_intermediate_size")
    is_sigmoid = family.model_type == "dots1"
    routing = Routing(
        top_k=fields.integer("num_experts_per_tok"),
        scoring="sigmoid" if is_sigmoid else "softmax",
        norm_topk=fields.boolean("norm_topk_prob", False),
        scale=scale,
    )
    if len(dense) == layers:
        return None
    return MoeConfig(experts, inner, routing, is_sigmoid, shared * inner, dense)


def _window(fields: Fields, family: _Family, positions: int, layers: int) -> int:
    """The longest context in which every token still attends to all before it."""
    kinds = fields.strings("layer_types")
    if any(kind != "full_attention" for kind in kinds):
        raise ModelError("only full attention is supported", where=f"{fields.where}: layer_types")
    if family.model_type == "mistral":  # the family's default, where the key is absent, is a window of 4096
        window = fields.take("sliding_window", 4096)
        return positions if window is None else fields.as_integer("sliding_window", window)
    if family.model_type == "dots1":  # absent, layer_types are a window of 4096 from layer 62 on
        window, first = fields.take("sliding_window", 4096), fields.integer("max_window_layers", 62)
        if kinds or window is None or layers <= first:
            return positions
        return fields.as_integer("sliding_window", window)
    window = fields.take("sliding_window", None)
    if family.model_type == "llama" and window is not None:
        raise ModelError("Llama has no sliding window", where=f"{fields.where}: sliding_window")
    return positions  # Qwen: a window counts only with use_sliding_window, which is refused


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Theta and scaling from `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    old, new = fields.take("rope_scaling", None), fields.take("rope_parameters", None)
    name = "rope_scaling" if new is None else "rope_parameters"
    table = old if new is None else new
    where = f"{fields.where}: {name}"
    if old is not None and new is not None and old != new:
        raise ModelError("rope_scaling and rope_parameters disagree", where=where)
    if not isinstance(table, dict | None):
        raise ModelError("is not an object", where=where)
    rope = Fields(table or {}, where)
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


def _scaling(kind: object, rope: Fields) -> RopeScaling | None:
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
