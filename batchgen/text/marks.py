"""Keep control tokens that appear in the data apart from those that the chat template writes.

Before rendering, each control-token literal in the data is replaced by one private character, a mark. After rendering,
the literals still in the text are the template's own and become tokens; the marks turn back into plain text.
A mark that stands for nothing guards the edges of the data, so that no control token comes together from pieces.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from batchgen.errors import RowError

# Plane 16 of Unicode is private use. Its characters in the data are themselves replaced by marks, so none is mistaken.
_FIRST, _LAST = 0x100000, 0x10FFFD
_MARK_CLASS = f"[{chr(_FIRST)}-{chr(_LAST)}]"
_MARK = re.compile(_MARK_CLASS)
_MARK_IN_JSON = re.compile(r"\\udb[c-f][0-9a-f]\\ud[c-f][0-9a-f]{2}")  # as ASCII JSON writes plane 16
_GUARD = ""


def holds_mark(text: str) -> bool:
    """Does `text` hold a character that marks are made of?"""
    return _MARK.search(text) is not None


def unescape_marks(text: str) -> str:
    """ASCII JSON with its marks as characters again, so that they can be revealed."""
    return _MARK_IN_JSON.sub(lambda found: str(json.loads(f'"{found[0]}"')), text)


class ControlTokens:
    """The control tokens of a tokenizer, as text."""

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = tuple(sorted(literals, key=lambda literal: (-len(literal), literal)))
        alternatives = "|".join(map(re.escape, self.literals)) or r"(?!)"
        self._pattern = re.compile(alternatives)
        self.to_hide = re.compile(f"{alternatives}|{_MARK_CLASS}")
        self._heads = {literal[:cut] for literal in self.literals for cut in range(1, len(literal))}
        self._tails = {literal[cut:] for literal in self.literals for cut in range(1, len(literal))}
        self._longest = len(self.literals[0]) - 1 if self.literals else 0

    def find(self, text: str) -> list[str]:
        """Every control token written in `text`, from left to right, the longest where several begin."""
        return self._pattern.findall(text)

    def find_all(self, data: Any) -> list[str]:
        """The same for every string and key of JSON-like `data`."""
        if isinstance(data, str):
            return self.find(data)
        if isinstance(data, dict):
            return [literal for key, value in data.items() for literal in self.find(key) + self.find_all(value)]
        return [literal for value in data for literal in self.find_all(value)] if isinstance(data, list) else []

    def ends_with_head(self, text: str) -> bool:
        return any(text[-size:] in self._heads for size in range(1, min(self._longest, len(text)) + 1))

    def starts_with_tail(self, text: str) -> bool:
        return any(text[:size] in self._tails for size in range(1, min(self._longest, len(text)) + 1))


class Marks:
    """The marks of one row: `hide` makes them, `reveal` takes them back."""

    def __init__(self, control_tokens: ControlTokens) -> None:
        self._control_tokens = control_tokens
        self._mark_of: dict[str, str] = {}

    def hide(self, data: Any) -> Any:
        """A copy of JSON-like `data` with marks in its strings and keys."""
        if isinstance(data, str):
            return self._guard(self._replace(data))
        if isinstance(data, dict):
            return {self._replace(key): self.hide(value) for key, value in data.items()}
        if isinstance(data, list):
            return [self.hide(value) for value in data]
        return data

    def reveal(self, text: str) -> str:
        literals = list(self._mark_of)
        return _MARK.sub(lambda mark: literals[ord(mark[0]) - _FIRST], text)

    def in_text(self, text: str) -> bool:
        return bool(self._mark_of) and holds_mark(text)

    def _replace(self, text: str) -> str:
        return self._control_tokens.to_hide.sub(lambda found: self._mark(found[0]), text)

    def _guard(self, text: str) -> str:
        """Marks at the edges, inside white space that a template may trim."""
        body = text.strip()
        before = self._mark(_GUARD) if self._control_tokens.starts_with_tail(body) else ""
        after = self._mark(_GUARD) if self._control_tokens.ends_with_head(body) else ""
        return text.replace(body, f"{before}{body}{after}", 1) if before or after else text

    def _mark(self, literal: str) -> str:
        if literal not in self._mark_of and _FIRST + len(self._mark_of) > _LAST:
            raise RowError("control_token", "the row holds more private-use characters than there are marks")
        return self._mark_of.setdefault(literal, chr(_FIRST + len(self._mark_of)))
