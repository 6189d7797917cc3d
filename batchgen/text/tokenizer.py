"""Tokenizer: text to ids and back, with one rule for control tokens."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import tokenizers

from batchgen.errors import ModelError, RowError
from batchgen.records import StructuredOutputs
from batchgen.text.decoder import Decoder, decoder_factory
from batchgen.text.gguf_vocab import parts_from_gguf
from batchgen.text.grammar import Grammars, Matcher, Vocabulary
from batchgen.text.hf_folder import read_folder
from batchgen.text.marks import ControlTokens, Marks
from batchgen.text.parts import TokenizerParts

Special = Literal["text", "allow"]


class Tokenizer:
    """A `tokenizers` tokenizer with what the model's files say about its special tokens and chat templates.

    A control token is one that the model's files declare special (`"special": true`, or CONTROL in GGUF).
    Not for use by two threads at once.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        """Raises ModelError when the parts do not make a deterministic tokenizer that can be decoded in steps."""
        model = parts.definition["model"]
        if model.get("dropout"):
            raise ModelError(f"the tokenizer's merges drop out at random (dropout {model['dropout']})")
        self._make_decoder = decoder_factory(parts.definition.get("decoder"))
        self._inner = _build(parts.definition_json)
        for entry in parts.definition["added_tokens"]:
            token_id = self._inner.token_to_id(entry["content"])
            if token_id != entry["id"]:
                raise ModelError(
                    f"added token {entry['content']!r} is said to have id {entry['id']} but gets {token_id}"
                )
        self._parts = parts
        controls = {entry["content"]: entry["id"] for entry in parts.definition["added_tokens"] if entry["special"]}
        self._control_ids = frozenset(controls.values())
        # The unknown token is what the vocabulary gives for text that it cannot spell, so plain text may hold it.
        self._never_text = self._control_ids - {self._inner.token_to_id(model.get("unk_token") or "")}
        self.control_tokens = ControlTokens(controls)
        self.vocab_size: int = 1 + max([*model["vocab"].values(), *(e["id"] for e in parts.definition["added_tokens"])])
        self.digest = parts.digest()
        self.prefix_ids, self.suffix_ids = self._added_around()

    @classmethod
    def from_folder(cls, folder: Path, *, use_generation_config: bool = False) -> Self:
        """From a Hugging Face model folder; `use_generation_config` adds the EOS ids of generation_config.json."""
        parts = read_folder(folder, use_generation_config=use_generation_config)
        try:
            return cls(parts)
        except ModelError as error:
            raise ModelError(error.message, where=str(folder / "tokenizer.json"), hint=error.hint) from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """From the metadata of a GGUF file, arrays as lists."""
        return cls(parts_from_gguf(metadata))

    @property
    def bos_token_id(self) -> int | None:
        literal = self.special_tokens.get("bos_token")
        return None if literal is None else self.token_id(literal)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._parts.eos_token_ids

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """`bos_token` and its like -> literal, as chat templates name them; only those that the model has."""
        return self._parts.special_tokens

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Name -> source; the usual one is called "default"."""
        return self._parts.chat_templates

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def token_id(self, token: str) -> int | None:
        return self._inner.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool = True, special: Special = "text") -> list[int]:
        """The ids of `text`, which must be valid Unicode.

        `add_special_tokens` puts `prefix_ids` and `suffix_ids` around them. `special` says what a control token written
        in `text` is: "text" like any other, or (with "allow") the token. Raises RowError "control_token" when the
        vocabulary has no other spelling for one.
        """
        ids = self._encode_text(self._inner, text) if special == "text" else self._encode(text).ids
        return [*self.prefix_ids, *ids, *self.suffix_ids] if add_special_tokens else ids

    def encode_continuation(self, text: str) -> list[int]:
        """The ids of `text` as it stands behind other text: nothing is put before it. Raises as `encode`."""
        return self._encode_text(self._continuation, text)

    def encode_rendered(self, text: str, marks: Marks) -> list[int]:
        """The ids of a rendered chat: control tokens in `text` are tokens, those hidden by `marks` are plain text.

        Without a mark in `text` these are the ids of ``encode(text, special="allow")``. Between two control tokens the
        text is encoded in one piece, as it would be there too.
        """
        encoding = self._encode(text)
        if not marks.in_text(text):
            return encoding.ids
        ids: list[int] = []
        marked = encoding.ids
        first = at = 0  # of the piece of text since the last control token: its first id and character
        for i, (token_id, (start, end)) in enumerate(zip(marked, encoding.offsets, strict=True)):
            if token_id in self._control_ids and self._is_written(token_id, text[start:end]):
                ids += self._encode_piece(text[at:start], marked[first:i], marks, begins=at == 0)
                ids.append(token_id)
                first, at = i + 1, end
        return ids + self._encode_piece(text[at:], marked[first:], marks, begins=at == 0)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 are U+FFFD, ids outside the vocabulary add nothing."""
        return self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def decoder(self, *, skip_special_tokens: bool = True) -> Decoder:
        """Decodes one id at a time, to the same text as `decode`."""
        return self._make_decoder(self._visible_piece if skip_special_tokens else self._inner.id_to_token)

    def matcher(self, outputs: StructuredOutputs, vocab_size: int) -> Matcher:
        """What watches one text of a model with so many ids. Raises as Grammars.matcher."""
        return self._grammars.matcher(outputs, vocab_size)

    def can_match(self, regex: str, length: int) -> bool:
        """See Grammars."""
        return self._grammars.can_match(regex, length)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token."""
        decoder = self._make_decoder(lambda token_id: "\u2581")
        pieces = [self._inner.id_to_token(token_id) for token_id in range(self.vocab_size)]
        return Vocabulary(
            [decoder.bytes_of(piece) if piece else b"" for piece in pieces],
            self._control_ids,
            lambda text: self._encode(text).ids,
            strips_space=not decoder.push(0) + decoder.finish(),
        )

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.vocabulary)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to other processes; they compile grammars anew."""
        return {name: value for name, value in self.__dict__.items() if name not in ("vocabulary", "_grammars")}

    def _added_around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the post-processor puts before and after a text."""
        encoding = self._inner.encode("a", add_special_tokens=True)
        body = [i for i, added in enumerate(encoding.special_tokens_mask) if not added]
        return tuple(encoding.ids[: body[0]]), tuple(encoding.ids[body[-1] + 1 :])

    def _visible_piece(self, token_id: int) -> str | None:
        return None if token_id in self._control_ids else self._inner.id_to_token(token_id)

    def _encode(self, text: str) -> tokenizers.Encoding:
        self._inner.encode_special_tokens = False
        return self._inner.encode(text, add_special_tokens=False)

    def _encode_text(self, inner: tokenizers.Tokenizer, text: str) -> list[int]:
        inner.encode_special_tokens = True
        ids: list[int] = inner.encode(text, add_special_tokens=False).ids
        if not self._never_text.isdisjoint(ids):
            literal = self._inner.id_to_token(next(i for i in ids if i in self._never_text))
            raise RowError("control_token", f"the tokenizer cannot write {literal!r} as plain text")
        return ids

    def _encode_piece(self, text: str, ids: list[int], marks: Marks, *, begins: bool) -> list[int]:
        if not marks.in_text(text):
            return ids
        return self._encode_text(self._inner if begins else self._continuation, marks.reveal(text))

    @cached_property
    def _continuation(self) -> tokenizers.Tokenizer:
        """For text that does not begin the prompt, where Metaspace's "first" puts no space in front."""
        definition = self._parts.definition_json
        inside = definition.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        return self._inner if inside == definition else _build(inside)

    def _is_written(self, token_id: int, text: str) -> bool:
        """Is the control token in the text? The unknown token also stands for text that is something else."""
        if token_id in (self.token_id(text), self.token_id(text.strip())):
            return True
        if token_id in self._never_text:
            raise RowError("control_token", f"text that is normalized to {self._inner.id_to_token(token_id)!r}")
        return False


def _build(definition: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"the tokenizer's definition is not valid: {error}") from error
