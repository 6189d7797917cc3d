"""TokenizerParts: what a model's files say about its tokenizer, before anything is built from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from batchgen.errors import ModelError


@dataclass(frozen=True)
class TokenizerParts:
    """The same four parts, whether they came from a folder or from a GGUF file."""

    definition: dict[str, Any]  # the content of a tokenizer.json
    special_tokens: Mapping[str, str]  # "bos_token" -> "<s>"; the names are those that chat templates read
    eos_token_ids: tuple[int, ...]
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # "default" and named ones

    @cached_property
    def definition_json(self) -> str:
        return _canonical(self.definition)

    def digest(self) -> str:
        """Hex SHA-256 over everything that can change a prompt id or a character of decoded text."""
        rest = [dict(self.special_tokens), list(self.eos_token_ids), dict(self.chat_templates)]
        return sha256(f"{self.definition_json}\n{_canonical(rest)}".encode()).hexdigest()


def declare_added(definition: dict[str, Any], content: str, *, token_id: int | None, special: bool) -> None:
    """Make `content` an added token of `definition`, at `token_id` or at the id its vocabulary gives it.

    A token that the tokenizer does not hold and that comes with no id is left out.
    Raises ModelError when two files give one token two ids.
    """
    for entry in definition["added_tokens"]:
        if entry["content"] == content:
            if token_id is not None and entry["id"] != token_id:
                raise ModelError(
                    f"token {content!r} has id {entry['id']} in one tokenizer file and {token_id} in another"
                )
            entry["special"] = entry["special"] or special
            return
    known = definition["model"]["vocab"].get(content, token_id)
    if known is not None:
        definition["added_tokens"].append(added_token(known, content, special=special))


def added_token(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    """An entry of a tokenizer.json's added_tokens: found anywhere, as written, taking no space with it."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}


def bos_eos_processor(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> dict[str, Any] | None:
    """The tokenizer.json post-processor that puts BOS before a text and EOS after it; None when it would do nothing."""
    if bos is None and eos is None:
        return None

    def side(token: tuple[str, int] | None, type_id: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": token[0], "type_id": type_id}}] if token else []

    def text(name: str, type_id: int) -> list[dict[str, Any]]:
        return [*side(bos, type_id), {"Sequence": {"id": name, "type_id": type_id}}, *side(eos, type_id)]

    return {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": [*text("A", 0), *text("B", 1)],
        "special_tokens": {
            literal: {"id": literal, "ids": [token_id], "tokens": [literal]}
            for literal, token_id in (token for token in (bos, eos) if token)
        },
    }


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
