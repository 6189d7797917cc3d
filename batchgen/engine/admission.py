"""What the engine refuses to start on."""

from dataclasses import dataclass

from batchgen.errors import EngineError, RowError
from batchgen.records import Request, check_params


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the model sets, and the job may narrow. Every field can change a completion."""

    vocab_size: int
    max_model_len: int  # prompt and output tokens
    eos_token_ids: frozenset[int]


def check_request(request: Request, vocab_size: int) -> None:
    """Raise EngineError for what is the caller's mistake and no property of one row."""
    where = f"request {request.row_key!r}, sample {request.sample_index}"
    for field, message in check_params(request.params):
        raise EngineError(message, where=f"{where}: {field}")
    if not 0 <= request.seed < 2**64:
        raise EngineError(f"must be an unsigned 64-bit integer, got {request.seed}", where=f"{where}: seed")
    words = request.bad_words_token_ids
    if not all(words):
        raise EngineError("holds an empty word", where=f"{where}: bad_words_token_ids")
    if request.continuation is not None and not request.continuation:
        raise EngineError("holds no token", where=f"{where}: continuation")
    if request.continuation is not None and request.params.structured_outputs is not None:
        hint = "leave structured_outputs out: raw logprobs do not depend on them"
        raise EngineError("does not go with structured_outputs", where=f"{where}: continuation", hint=hint)
    for field, ids in (
        ("continuation", request.continuation or ()),
        ("stop_token_ids", request.params.stop_token_ids),
        ("logit_bias", request.params.logit_bias),
        ("bad_words_token_ids", [i for word in words for i in word]),
    ):
        if foreign := sorted(i for i in ids if not 0 <= i < vocab_size):
            raise EngineError(f"ids {foreign} lie outside the vocabulary of {vocab_size}", where=f"{where}: {field}")


def check_prompt(request: Request, model: ModelLimits) -> None:
    """Raise RowError for what makes one row unanswerable."""
    prompt, given, max_tokens = request.prompt_token_ids, request.continuation, request.params.max_tokens
    if not prompt:
        raise RowError("prompt_empty", "the prompt has no token")
    if min(prompt) < 0 or max(prompt) >= model.vocab_size:
        foreign = sorted({i for i in prompt if not 0 <= i < model.vocab_size})
        raise RowError("prompt_type", f"prompt ids {foreign} lie outside the vocabulary of {model.vocab_size}")
    if given is not None:
        if len(prompt) + len(given) - 1 > model.max_model_len:  # the last token is never computed
            total = f"{len(prompt)} prompt tokens + {len(given)} of the continuation"
            raise RowError("prompt_overlong", f"{total} exceed max_model_len {model.max_model_len}")
    elif len(prompt) + max_tokens > model.max_model_len:
        total = f"{len(prompt)} prompt tokens + max_tokens {max_tokens}"
        raise RowError("prompt_overlong", f"{total} exceed max_model_len {model.max_model_len}")
