"""Two completions of one request, field by field and bit by bit."""

import struct
from dataclasses import MISSING, dataclass, fields
from typing import Any

from batchgen.records import Completion

_DIGITS = 32  # of bytes, from the first that differs


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which one field of two completions differs. Floats are the hex digits of their bits."""

    field: str
    token: int | None  # output position; None for a field that is not of tokens
    first: Any  # JSON; None past the end of the shorter one
    second: Any

    def __str__(self) -> str:
        if self.token is None:
            return f"{self.field} {self.first!r}, then {self.second!r}"
        first, second = self.first, self.second
        if isinstance(first, list) and isinstance(second, list):  # of the alternatives the first that differs
            first, second = next(((a, b) for a, b in zip(first, second, strict=False) if a != b), (first, second))
        return f"{self.field} of token {self.token}: {first}, then {second}"


def differences(first: Completion, second: Completion) -> list[Difference]:
    """One for each field that differs, by token, then by field; empty when both are equal bit for bit."""
    a, b = bits(first), bits(second)
    found = [_first_place(name, a[name], b[name]) for name in a if a[name] != b[name]]
    return sorted(found, key=lambda difference: (difference.token is None, difference.token or 0))


def bits(completion: Completion) -> dict[str, Any]:
    """JSON of a completion, every float as the eight hex digits of its float32 bits, bytes as hex."""
    return {field.name: _plain(getattr(completion, field.name)) for field in fields(completion)}


def from_bits(found: dict[str, Any]) -> Completion:
    """The completion of which `found` are the bits. Raises TypeError, KeyError or ValueError for anything else."""
    there = [field.name for field in fields(Completion) if field.name in found or field.default is MISSING]
    values = {name: _tuples(found[name]) for name in there}  # what a field that came later lacks is its default
    if values.get("routed_experts") is not None:
        values["routed_experts"] = bytes.fromhex(values["routed_experts"])
    for name in ("logprobs", "top_logprobs_values", "prompt_logprobs", "prompt_top_logprobs_values"):
        values[name] = _floats(values.get(name))
    return Completion(**values)


def _floats(value: Any) -> Any:
    if value is None or isinstance(value, tuple):
        return value and tuple(map(_floats, value))
    return _float(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _float(digits: str) -> float:
    [value] = struct.unpack(">f", bytes.fromhex(digits))
    return float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack(">f", value).hex()
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _first_place(name: str, a: Any, b: Any) -> Difference:
    if name == "routed_experts" and a and b:  # far too long to be read
        at = _first(a, b) // 2 * 2
        return Difference(name, None, a[at:][:_DIGITS], b[at:][:_DIGITS])
    if not (isinstance(a, list) and isinstance(b, list)):
        return Difference(name, None, a, b)
    at = _first(a, b)
    return Difference(name, at, *(side[at] if at < len(side) else None for side in (a, b)))


def _first(a: str | list[Any], b: str | list[Any]) -> int:
    """Where they differ, or one of them ends."""
    return next((i for i, (left, right) in enumerate(zip(a, b, strict=False)) if left != right), min(len(a), len(b)))
