"""Sampling parameters that a row says itself: which may be, as one text, and laid over those of the job."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import rfc8785

from batchgen.errors import RowError, nearest
from batchgen.records import SamplingParams, StructuredOutputs, check_params
from batchgen.schema_text import schema_text

NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
INTEGERS = ("top_k", "max_tokens", "min_tokens")
FORMS = ("json_schema", "regex", "choice")  # of structured_outputs
LISTS = ("stop", "choice")  # of texts
OWN = (*NUMBERS, *INTEGERS, "stop", *FORMS)

_OF_ROWS = "decides how many rows there are, which is the job's to say"
_OF_COLUMNS = "decides which columns there are, which is the job's to say"
_OF_THE_JOB = {
    "n": _OF_ROWS,
    "seed": "is the job's: each row and sample has one of its own already",
    "structured_outputs": "is named by its parts here: json_schema, regex or choice",
} | dict.fromkeys(("logprobs", "prompt_logprobs", "kept_tokens", "reasoning", "routed_experts"), _OF_COLUMNS)


def why_not(name: str) -> str | None:
    """Why no row may say `name`; None when it may."""
    if name in OWN:
        return None
    if name in _OF_THE_JOB:
        return _OF_THE_JOB[name]
    if name in SamplingParams.__dataclass_fields__ or name == "grammar":
        return "is the job's alone"
    return f"is no sampling parameter ({nearest(name, OWN)})"


def sampling_text(values: Mapping[str, Any]) -> str | None:
    """What a row says, by name, in one form: RFC 8785 JSON without what is null; None where nothing is left.

    Raises RowError "sampling" for a value that has no exact JSON form, such as NaN, and a schema that is no JSON.
    """
    said = {name: value for name, value in values.items() if value is not None}
    for name, value in said.items():
        try:
            if name == "json_schema":
                said[name] = value = schema_text(value)
        except ValueError as error:  # what follows a colon hangs on Python's version, and rows must not
            raise RowError("sampling", f"{name}: {str(error).partition(':')[0]}") from None
        try:
            rfc8785.dumps(value)
        except ValueError:
            raise RowError("sampling", f"{name}: {value!r:.80} has no exact JSON form") from None
    return rfc8785.dumps(said).decode() if said else None


def with_own(params: SamplingParams, text: str | None) -> SamplingParams:
    """`params` of the job with what a row says in `text`, as `sampling_text` wrote it.

    Raises RowError "sampling" for a value out of range, or one that does not go with the others or with the job's,
    and for a text that `sampling_text` never writes.
    """
    if text is None:
        return params
    own = said_by(text)
    forms = {name: own.pop(name) for name in FORMS if name in own}
    if len(forms) > 1:
        raise RowError("sampling", f"{' and '.join(forms)} are given, and an answer has one form")
    if forms:
        own["structured_outputs"] = StructuredOutputs(**forms)
    found = replace(params, **own)
    for name, message in check_params(found):
        raise RowError("sampling", f"{name.removeprefix('structured_outputs.')}: {message}")
    return found


def said_by(text: str) -> dict[str, Any]:
    """The parameters in `text`, by name. Raises RowError "sampling" for a text that `sampling_text` never writes."""
    try:
        said = json.loads(text)
        if not isinstance(said, dict) or sampling_text(said) != text or any(why_not(name) for name in said):
            raise ValueError
    except (ValueError, RecursionError):
        raise RowError("sampling", "is not written as batchgen writes it") from None
    for name, value in said.items():
        if name in NUMBERS and type(value) is int:
            said[name] = float(value)  # RFC 8785 writes 1.0 as 1
        if isinstance(value, list):
            said[name] = tuple(value)
    return said
