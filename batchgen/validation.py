"""What pydantic found wrong -> one problem a key: in our words, with the nearest valid name."""

import dataclasses
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from batchgen.errors import nearest
from batchgen.strict_yaml import KeyProblem

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def explain(error: ValidationError, model: type[BaseModel], not_yet: Collection[str]) -> list[KeyProblem]:
    """The problems of a document that is no `model`, in the order of its fields.

    `not_yet` are dotted keys that users may expect and that are refused as not supported yet.
    """
    found = error.errors()
    inside = {details["loc"][:length] for details in found for length in range(len(details["loc"]))}
    # A list all of whose items are wrong is also too short, for pydantic: it is not.
    told = [details for details in found if details["type"] != "too_short" or details["loc"] not in inside]
    return [problem for details in told for problem in _explain(details, model, not_yet)]


def _explain(details: ErrorDetails, model: type[BaseModel], not_yet: Collection[str]) -> Iterator[KeyProblem]:
    loc = tuple(part for part in details["loc"] if part != "[key]")
    key, kind, value = _dotted(loc), details["type"], details["input"]
    if kind == "problems":
        for field, message in details["ctx"]["problems"]:
            yield KeyProblem(_dotted((*loc, field) if field else loc), message)
    elif key in not_yet:
        yield KeyProblem(key, "is not supported yet", "remove it")
    elif kind in _UNKNOWN_KEY:
        yield KeyProblem(key, "unknown key", nearest(str(loc[-1]), _names(_section(model, loc[:-1]))))
    elif kind == "missing":
        yield KeyProblem(key, "is required")
    else:
        hint = "write it in quotes" if kind == "string_type" and isinstance(value, int | float) else ""
        yield KeyProblem(key, f"{_sentence(details['msg'])}, got {_short(value)}", hint)


def _dotted(loc: tuple[int | str, ...]) -> str:
    """("inputs", 0, "path") -> inputs[0].path"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def _sentence(message: str) -> str:
    nouns = {
        "a valid integer": "an integer",
        "a valid array": "a list",
        "an object": "a mapping",
        "a valid dictionary": "a mapping",
        "a valid boolean": "true or false",
        "True or False": "true or false",
    }
    for theirs, ours in nouns.items():
        message = message.replace(theirs, ours)
    return (
        re.sub("^(Input|String|Tuple) should", "must", message).replace("valid ", "").replace(" after validation", "")
    )


def _short(value: Any) -> str:
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)  # as the job file says it
    return text if len(text) <= 60 else f"{text[:57]}..."


def _section(model: type[Any], loc: tuple[int | str, ...]) -> type[Any]:
    """The class that describes the mapping at `loc` inside `model`."""
    for part in loc:
        if isinstance(part, str):
            model = next(_classes(_annotations(model)[part]))
    return model


def _annotations(model: type[Any]) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in dataclasses.fields(model)}


def _names(model: type[Any]) -> list[str]:
    return list(_annotations(model))


def _classes(annotation: Any) -> Iterator[type[Any]]:
    """The sections that an annotation such as tuple[Section, ...] or Section | None speaks of."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes(argument)
