"""Structured outputs by llguidance: which tokens may come next, so that the text becomes one that is asked for.

A token may come next iff the text so far and its bytes begin a text of the grammar. It is nothing else: no token is
forced because a tokenizer would have chosen it. The end may come iff the text is whole. Nothing looks at a clock; what
bounds the work are llguidance's counters, and each text has a matcher of its own, so that it alone moves them.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchgen.errors import RowError
from batchgen.records import StructuredOutputs

# The written form of JSON is that of Python's json.dumps. Free white space lets a small model write it without end.
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_TEXT = "NoExtensionBias"
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_LONGEST = 1 << 20  # characters of a grammar


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or that no text satisfies."""


class Matcher:
    """One text on its way, token by token."""

    def __init__(self, inner: Any, tokens: "Vocabulary", vocab_size: int) -> None:
        """`inner`: an LLMatcher of its own. Raises RowError as `accept`."""
        self._inner, self._tokens, self._vocab_size = inner, tokens, vocab_size
        self._begins = True
        self._look()

    def accept(self, token_id: int) -> None:
        """Take the next token. Raises RowError "grammar" when no text goes on from there, or none that can be found."""
        self._begins = False
        self._inner.consume_token(token_id)
        self._look()

    def banned(self, ending: frozenset[int]) -> NDArray[np.int32]:
        """Ids that must not come next, ascending; `ending` are those that end a text, which may once it is whole."""
        allowed = np.zeros(self._vocab_size, np.bool_)
        bits = np.unpackbits(self._bits, bitorder="little")[: len(self._tokens)]
        allowed[: len(bits)] = bits
        if self._begins and self._tokens.strips_space:
            allowed[self._tokens.spaced] = False
        allowed[list(ending)] = self.may_end
        return np.flatnonzero(~allowed).astype(np.int32)

    def _look(self) -> None:
        """What may come next, as bits; it stays small while the text waits."""
        self._bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        self.may_end = bool(self._inner.is_accepting())
        if self._inner.is_error() and not self.may_end:
            raise RowError("grammar", f"the text cannot go on: {_reason(self._inner)}")


class Vocabulary:
    """The bytes of each token, as llguidance wants them."""

    eos_token_id = bos_token_id = None  # ends are the engine's: they may come where the grammar is satisfied
    is_tokenizer_wrapper = True

    def __init__(
        self, tokens: list[bytes], special: frozenset[int], encode: Callable[[str], list[int]], strips_space: bool
    ) -> None:
        """`special` are no text. `strips_space`: the text of an answer loses a space that it begins with."""
        self.tokens, self.special_token_ids, self.strips_space = tokens, sorted(special), strips_space
        self._encode = encode

    def __len__(self) -> int:
        return len(self.tokens)

    def __call__(self, text: bytes | str) -> list[int]:
        """The ids of a text, for grammars that name tokens."""
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))

    @cached_property
    def spaced(self) -> list[int]:
        """Ids whose text begins with a space."""
        return [i for i, token in enumerate(self.tokens) if token.startswith(b" ")]


class Grammars:
    """Compiles grammars for one vocabulary."""

    def __init__(self, tokens: Vocabulary) -> None:
        import llguidance  # most jobs have no grammar

        self._llguidance = llguidance
        self._tokens = tokens
        self._tokenizer = llguidance.LLTokenizer(tokens)  # type: ignore[arg-type]
        self._limits = llguidance.LLParserLimits(verbose_errors=False)

    def matcher(self, outputs: StructuredOutputs, vocab_size: int) -> Matcher:
        """For one text of a model with so many token ids.

        It is compiled anew each time: copies of an LLMatcher share a lexer, whose size is bounded, and then one text
        could end another's. Raises GrammarError, and RowError when no text can begin.
        """
        inner = self._llguidance.LLMatcher(self._tokenizer, self._lark(outputs), log_level=0, limits=self._limits)
        if inner.is_error():
            raise GrammarError(_explained(inner, is_theirs=outputs.grammar is not None))
        return Matcher(inner, self._tokens, vocab_size)

    def can_match(self, regex: str, length: int) -> bool:
        """Whether a text of so many characters or fewer matches `regex`; True where it cannot be known."""
        pattern = self._llguidance.regex_to_lark(regex, "")
        text = f"start: TEXT\nTEXT: /{pattern}/ & /(?s:.{{0,{length}}})/"
        inner = self._llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        inner.compute_bitmask()
        return not inner.is_error() or bool(inner.is_accepting()) or _reason(inner) != _NO_TEXT

    def _lark(self, outputs: StructuredOutputs) -> str:
        """`outputs` in llguidance's dialect of Lark. Raises GrammarError for what is too large or no JSON."""
        given: str | Sequence[str] = getattr(outputs, outputs.kind)
        size = len(given) if isinstance(given, str) else sum(map(len, given))
        if size > _LONGEST:
            raise GrammarError(f"has {size} characters, and {_LONGEST} are the most")
        if outputs.json_schema is not None:
            body = f"start: %json {_with_form(outputs.json_schema)}"
        elif outputs.regex is not None:
            body = f"start: /{self._llguidance.regex_to_lark(outputs.regex, '')}/"
        elif outputs.choice is not None:
            body = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in outputs.choice)
        else:
            body = str(outputs.grammar)
        return f'{body}\n%llguidance {{"no_forcing": true}}'  # last, so that an error names the line of the job


def _with_form(schema: str) -> str:
    """The schema with how its JSON is written, where it does not say so itself."""
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise GrammarError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise GrammarError("must be a JSON object")
    said = value.get("x-guidance", {})
    form = {**_JSON_FORM, **(said if isinstance(said, dict) else {}), "lenient": False}
    return json.dumps({**value, "x-guidance": form}, ensure_ascii=False)


def _reason(inner: Any) -> str:
    """The first line of an error; the others tell of a parser's state, and how long it took."""
    return str(inner.get_error()).strip().split("\n")[0] or str(inner.stop_reason())


def _explained(inner: Any, *, is_theirs: bool) -> str:
    """Why something cannot be compiled, with the place in the text if that is the user's."""
    lines = str(inner.get_error()).strip().split("\n")
    first = lines[0] if is_theirs else _PLACE.sub("", lines[0])
    return " ".join([first, *(line for line in lines[1:] if line.startswith("error: "))])
