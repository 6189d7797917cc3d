"""How many tokens every text of a grammar needs at least, as far as that can be known without trying them all.

Of a choice it is exact. Of a JSON Schema it counts what each text must hold: the names of required properties, the
quotes and brackets, the shortest strings and lists. A bound that is too low lets a job through whose rows then end
with "length"; none is ever too high.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from math import ceil, inf
from typing import Any, NamedTuple

from batchgen.text.grammar import Vocabulary

_TYPES = {"string": 2, "object": 2, "array": 2, "boolean": 4, "null": 4, "number": 1, "integer": 1}


class Least(NamedTuple):
    """What a part of a text takes at least; infinite: no text of it ends."""

    joints: float  # tokens beyond the first, because of literals that no single token holds
    length: float  # bytes

    @classmethod
    def most_of(cls, parts: Iterable["Least"]) -> "Least":
        """All of them hold for one text."""
        found = list(parts)
        return cls(max(part.joints for part in found), max(part.length for part in found))

    @classmethod
    def least_of(cls, parts: Iterable["Least"]) -> "Least":
        """One of them holds; with none there is no text."""
        found = list(parts)
        return cls(min((p.joints for p in found), default=inf), min((p.length for p in found), default=inf))


class Pieces:
    """Which pieces of a text are within one token."""

    def __init__(self, tokens: Vocabulary) -> None:
        special = set(tokens.special_token_ids)
        texts = [token for i, token in enumerate(tokens.tokens) if token and i not in special]
        self._whole = frozenset(texts)
        self.longest = max(map(len, texts))
        self._all = b"\xff".join(texts)  # which is in no UTF-8
        self._forwards, self._backwards = sorted(texts), sorted(text[::-1] for text in texts)

    def exact(self, text: bytes) -> float:
        """Tokens of a text that is just this."""
        return self._walk(text, lambda piece, begins, ends: piece in self._whole)

    def within(self, text: bytes) -> float:
        """Tokens that reach into `text` where it stands in a longer one."""
        return self._walk(text, self._fits)

    def _fits(self, piece: bytes, begins: bool, ends: bool) -> bool:
        """In the first token there may be more before the piece, in the last more behind it."""
        if begins and ends:
            return piece in self._all
        if begins:
            return _has_prefix(self._backwards, piece[::-1])
        return _has_prefix(self._forwards, piece) if ends else piece in self._whole

    def _walk(self, text: bytes, fits: Callable[[bytes, bool, bool], bool]) -> float:
        best = [0.0, *[inf] * len(text)]
        for stop in range(1, len(text) + 1):
            starts = range(max(0, stop - self.longest), stop)
            good = (best[at] for at in starts if best[at] < inf and fits(text[at:stop], at == 0, stop == len(text)))
            best[stop] = 1 + min(good, default=inf)
        return best[-1]


def _has_prefix(ordered: list[bytes], piece: bytes) -> bool:
    at = bisect_left(ordered, piece)
    return at < len(ordered) and ordered[at].startswith(piece)


def least_of_choice(texts: Iterable[str], pieces: Pieces) -> float:
    """Tokens of the shortest one."""
    return min(pieces.exact(text.encode("utf-8")) for text in texts)


def least_of_schema(schema: str, pieces: Pieces) -> float:
    """Tokens that every JSON text of a schema needs at least; infinite where no text ends."""
    least = _Walk(json.loads(schema), pieces).settled()
    return max(1 + least.joints, ceil(least.length / pieces.longest) if least.length < inf else inf)


class _Walk:
    """A schema whose references may lead in circles: what they need is lowered until it stays."""

    def __init__(self, root: Mapping[str, Any], pieces: Pieces) -> None:
        self._root, self._pieces = root, pieces
        self._of: dict[str, Least] = {"#": Least(inf, inf)}

    def settled(self) -> Least:
        while True:
            before = dict(self._of)
            for pointer in before:
                self._of[pointer] = self._least(_at(self._root, pointer))
            if self._of == before:
                return before["#"]

    def _least(self, schema: Any) -> Least:
        if schema is False:
            return Least(inf, inf)
        if not isinstance(schema, Mapping):
            return Least(0, 1)
        parts = [self._of_type(schema)]
        if isinstance(pointer := schema.get("$ref"), str) and (pointer == "#" or pointer.startswith("#/")):
            parts.append(self._of.setdefault(pointer, Least(inf, inf)))
        if "const" in schema:
            parts.append(self._literal(schema["const"]))
        if isinstance(values := schema.get("enum"), list):
            parts.append(Least.least_of(map(self._literal, values)))
        for name, join in (("anyOf", Least.least_of), ("oneOf", Least.least_of), ("allOf", Least.most_of)):
            if isinstance(cases := schema.get(name), list) and cases:
                parts.append(join(map(self._least, cases)))
        return Least.most_of(parts)

    def _of_type(self, schema: Mapping[str, Any]) -> Least:
        kind = schema.get("type")
        if isinstance(kind, list):
            return Least.least_of(self._of_type({**schema, "type": one}) for one in kind)
        if kind == "object" and isinstance(names := schema.get("required"), list):
            of = schema.get("properties", {})
            parts = [part for name in names for part in (self._literal(name), self._least(of.get(name)))]
            return _together(parts, 2 + 2 * len(names) - 1 if names else 2)
        if kind == "array":
            count, first = _whole(schema.get("minItems")), schema.get("prefixItems")
            item = Least(0, 1) if first or not count else self._least(schema.get("items"))
            return Least(count * item.joints, count * (item.length + 1) + 1 + (not count)) if count else Least(0, 2)
        if kind == "string":
            return Least(0, 2 + _whole(schema.get("minLength")))
        return Least(0, _TYPES.get(kind, 1) if isinstance(kind, str) else 1)

    def _literal(self, value: Any) -> Least:
        """Of a text in quotes; there may be more ways to write other values."""
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            return Least(0, 1)
        text = json.dumps(value).encode()
        return Least(self._pieces.within(text) - 1, len(text))


def _together(parts: list[Least], others: int) -> Least:
    return Least(sum(part.joints for part in parts), others + sum(part.length for part in parts))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _at(root: Any, pointer: str) -> Any:
    """What a reference within the schema names; None where there is nothing."""
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root
