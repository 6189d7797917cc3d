"""Turn token ids into text one at a time, giving out only text that later tokens cannot change.

For any ids, the pushes and the finish joined equal `Tokenizer.decode(ids)`, character for character. Each push costs
time in proportion to the text it adds, never to the text before it.
"""

import codecs
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from batchgen.errors import ModelError

Piece = Callable[[int], str | None]  # the token of an id; None for an id that adds no text

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoder(Protocol):
    """One text being decoded. After `finish` it is ready for a new one."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...

    @staticmethod
    def bytes_of(token: str) -> bytes:
        """What a token adds to the bytes of a text that does not begin with it."""


def decoder_factory(spec: Any) -> Callable[[Piece], Decoder]:
    """What makes decoders for the `decoder` part of a tokenizer.json. Raises ModelError for an unknown kind."""
    if isinstance(spec, dict) and spec.get("type") == "ByteLevel":
        return ByteLevelDecoder
    steps = spec.get("decoders", []) if isinstance(spec, dict) and spec.get("type") == "Sequence" else []
    if steps[:3] == _BYTE_FALLBACK:
        match steps[3:]:
            case []:
                return ByteFallbackDecoder
            case [{"type": "Strip", "content": " ", "start": int(leading), "stop": 0}]:
                return partial(ByteFallbackDecoder, leading=leading)
    raise ModelError(
        f"the tokenizer's decoder is not supported: {spec!r}",
        hint="known: ByteLevel, and SentencePiece's Sequence of Replace, ByteFallback, Fuse and a leading Strip",
    )


_BYTE_FALLBACK = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]


class ByteLevelDecoder:
    """Byte-level BPE: each character of a token stands for a byte, and the bytes are UTF-8."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        token = self._piece(token_id)
        return self._utf8.decode(_token_bytes(token)) if token else ""

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)

    @staticmethod
    def bytes_of(token: str) -> bytes:
        """See Decoder."""
        return _token_bytes(token)


class ByteFallbackDecoder:
    """SentencePiece: tokens are text with U+2581 for a space; characters not in the vocabulary are runs of byte tokens.

    A run is text only if all of it is UTF-8, else every byte of it is U+FFFD, so it waits for its end.
    """

    def __init__(self, piece: Piece, leading: int = 0) -> None:
        self._piece = piece
        self._leading = self._to_strip = leading  # spaces to take from the front of the text
        self._run = bytearray()

    def push(self, token_id: int) -> str:
        token = self._piece(token_id)
        if token is None:
            return ""
        if byte := _BYTE_TOKEN.fullmatch(token):
            self._run.append(int(byte[1], 16))
            return ""
        return self._strip(self._end_run() + token.replace(_SPACE, " "))

    def finish(self) -> str:
        text = self._strip(self._end_run())
        self._to_strip = self._leading
        return text

    @staticmethod
    def bytes_of(token: str) -> bytes:
        """See Decoder."""
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode("utf-8")

    def _end_run(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _strip(self, text: str) -> str:
        if not self._to_strip or not text:
            return text
        spaces = min(self._to_strip, len(text) - len(text.lstrip(" ")))
        self._to_strip = self._to_strip - spaces if spaces == len(text) else 0
        return text[spaces:]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: itself where Latin-1 prints it, else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _token_bytes(token: str) -> bytes:
    """A token with any character outside the byte alphabet is an added one, and stands for its own text."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode("utf-8")
