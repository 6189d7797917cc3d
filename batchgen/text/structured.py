"""What a job says of the form of its answers, tried before a row is made."""

from collections.abc import Collection
from functools import lru_cache
from importlib.metadata import version

from batchgen.errors import RowError, SpecError
from batchgen.records import SamplingParams, StructuredOutputs
from batchgen.row_sampling import FORMS
from batchgen.schema_text import schema_text
from batchgen.text.grammar import Vocabulary
from batchgen.text.least_tokens import Pieces, least_of_choice, least_of_schema
from batchgen.text.tokenizer import Tokenizer

_MOST = 1 << 20  # characters that a regex is tried with


def check_structured(
    params: SamplingParams, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]
) -> None:
    """Raise SpecError for a grammar that cannot be compiled, or that no text satisfies within max_tokens.

    The second is told where it can be known: see least_tokens. A regex is held against the longest text that
    max_tokens tokens can be.
    """
    outputs = params.structured_outputs
    if outputs is None:
        return
    where = f"sampling.structured_outputs.{outputs.kind}"
    if not eos_token_ids:
        hint = "name a tokenizer that has one in model.tokenizer"
        raise SpecError("the model has no end-of-sequence token, which would end a text", where=where, hint=hint)
    try:
        if outputs.json_schema is not None:
            schema_text(outputs.json_schema)
        tokenizer.matcher(outputs, vocab_size)
        least = _least(outputs, tokenizer, params.max_tokens)
    except ValueError as error:
        raise SpecError(str(error), where=where) from None
    except RowError as error:
        raise SpecError("no text satisfies it", where=where) from error
    if least > params.max_tokens:
        most = params.max_tokens
        if least == float("inf"):
            raise SpecError(f"no text of {most} tokens (sampling.max_tokens) satisfies it", where=where)
        message = f"every text of it has {least:.0f} tokens or more, and sampling.max_tokens is {most}"
        raise SpecError(message, where=where, hint="raise max_tokens, or ask for less")


def grammar_digest(params: SamplingParams, own: Collection[str] = ()) -> dict[str, str]:
    """What else the answers of a job with a grammar depend on: the version of what compiles it.

    `own`: parameters that rows say themselves.
    """
    if params.structured_outputs is None and not set(FORMS) & set(own):
        return {}
    return {"grammars": f"llguidance {version('llguidance')}"}


@lru_cache(1)
def _pieces(vocabulary: Vocabulary) -> Pieces:
    """Rows may each have a schema, and to sort all tokens takes longer than to look at one."""
    return Pieces(vocabulary)


def _least(outputs: StructuredOutputs, tokenizer: Tokenizer, max_tokens: int) -> float:
    pieces = _pieces(tokenizer.vocabulary)
    if outputs.choice is not None:
        return least_of_choice(outputs.choice, pieces)
    if outputs.json_schema is not None:
        return least_of_schema(outputs.json_schema, pieces)
    if outputs.regex is not None and (most := max_tokens * pieces.longest) <= _MOST:
        return 1 if tokenizer.can_match(outputs.regex, most) else float("inf")
    return 1
