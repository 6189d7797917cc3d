"""Typed fields of a config.json, so that no key is passed over.

Every key is either read, known not to change the arithmetic of inference, known with the one value that is
supported, or refused: a setting that nobody looked at would change answers in silence.
"""

import json
from typing import Any, NoReturn

from batchgen.errors import ModelError, nearest
from batchgen.models.config import as_float32

# Training, bookkeeping, generation defaults (which come from the job alone) and what the tokenizer reads for itself.
_NEUTRAL = frozenset(
    """
    _attn_implementation_autoset _commit_hash _model_name_or_path _name_or_path architectures attention_dropout
    aux_loss_alpha bad_words_ids begin_suppress_tokens chunk_size_feed_forward decoder_start_token_id diversity_penalty
    do_sample dtype early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label initializer_range is_decoder is_llama_config label2id
    length_penalty max_length max_window_layers min_length model_type name_or_path no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_attentions output_hidden_states output_router_logits output_scores
    pad_token_id prefix pretraining_tp problem_type remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate router_aux_loss_coef sep_token_id seq_aux suppress_tokens task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
    typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
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
    "moe_layer_freq": 1,
    "n_group": 1,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
    "quantization_config": None,
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "topk_group": 1,
    "use_mrope": False,
    "use_sliding_window": False,
}


class Fields:
    """Takes typed fields out of a JSON object, so that what is left at the end is what nobody understood."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._rest, self.where = dict(raw), where

    def take(self, name: str, default: Any) -> Any:
        """The value as it stands, null included."""
        return self._rest.pop(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """`default` stands for a key that is absent or null; None: then the key is missing, a ModelError."""
        value = self._rest.pop(name, None)
        return self.as_integer(name, default if value is None else value)

    def alias(self, name: str, other: str) -> int:
        """The integer under either of two names."""
        values = [self._rest.pop(key, None) for key in (name, other)]
        given = [value for value in values if value is not None]
        if len(given) == 2 and given[0] != given[1]:
            raise ModelError(f"{name} is {given[0]} and {other} is {given[1]}", where=self.where)
        return self.as_integer(name, given[0] if given else None)

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
