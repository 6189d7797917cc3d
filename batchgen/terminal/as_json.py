"""What --json prints."""

import json
import math
from collections.abc import Mapping


def json_text(value: object) -> str:
    """One line; values that JSON does not know, such as dates, as text."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: object) -> object:
    """`value` with "NaN", "Infinity" or "-Infinity" for floats that JSON has no number for, and hex for bytes."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return value.hex()
        case Mapping():
            return {key: _plain(child) for key, child in value.items()}
        case list() | tuple():
            return [_plain(child) for child in value]
    return value
