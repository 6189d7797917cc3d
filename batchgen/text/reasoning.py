"""The marks of a model's reasoning, checked before anything is generated."""

from batchgen.errors import SpecError
from batchgen.records import SamplingParams
from batchgen.text.tokenizer import Tokenizer


def check_reasoning(params: SamplingParams, tokenizer: Tokenizer) -> None:
    """Raises SpecError for a mark that no text of an answer can hold."""
    if params.reasoning is None or not params.skip_special_tokens:
        return
    for mark in params.reasoning:
        if special := tokenizer.control_tokens.find(mark):
            message = f"{special[0]!r} is a special token of the model, and those are left out of the text"
            raise SpecError(message, where="sampling.reasoning", hint="set sampling.skip_special_tokens: false")
