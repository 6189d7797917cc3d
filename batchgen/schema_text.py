"""A JSON Schema as text in one form, in the order in which it was written: properties are generated in that order."""

import json
from collections.abc import Mapping
from typing import Any


def schema_text(schema: str | Mapping[str, Any]) -> str:
    """Compact JSON of `schema`, a JSON text or its value. Raises ValueError for what is no JSON object."""
    try:
        value = (
            json.loads(schema, object_pairs_hook=_object, parse_constant=_no_number)
            if isinstance(schema, str)
            else schema
        )
        if not isinstance(value, Mapping):
            raise ValueError("must be a JSON object")
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"holds the key {next(key for key in keys if keys.count(key) > 1)!r} twice in one object")
    return made


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
