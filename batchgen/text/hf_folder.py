"""Read the tokenizer files of a Hugging Face model folder."""

import json
from pathlib import Path
from typing import Any

from batchgen.errors import ModelError
from batchgen.text.parts import TokenizerParts, bos_eos_processor, declare_added

_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def read_folder(folder: Path, *, use_generation_config: bool = False) -> TokenizerParts:
    """tokenizer.json with what tokenizer_config.json, special_tokens_map.json and the template files add to it.

    `use_generation_config` adds the EOS ids of generation_config.json; otherwise that file is not opened.
    Raises ModelError: no tokenizer.json, a file that is not JSON, files that contradict each other.
    """
    definition = _read_definition(folder)
    config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
    for token_id, entry in sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        declare_added(definition, entry["content"], token_id=int(token_id), special=bool(entry.get("special")))
    special_tokens = {name: _content(config[name]) for name in _NAMED_TOKENS if config.get(name)}
    for literal in [*special_tokens.values(), *_more_tokens(config)]:
        declare_added(definition, literal, token_id=None, special=True)

    ids = definition["model"]["vocab"] | {entry["content"]: entry["id"] for entry in definition["added_tokens"]}
    for name in ("bos_token", "eos_token"):
        if name in special_tokens and special_tokens[name] not in ids:
            raise ModelError(f"{name} {special_tokens[name]!r} is not in tokenizer.json", where=str(folder))
    if definition.get("post_processor") is None:
        definition["post_processor"] = bos_eos_processor(
            _added("bos_token", config, special_tokens, ids), _added("eos_token", config, special_tokens, ids)
        )
    eos = [ids[special_tokens["eos_token"]]] if "eos_token" in special_tokens else []
    if use_generation_config:
        eos += _generation_eos(folder)
    return TokenizerParts(definition, special_tokens, tuple(dict.fromkeys(eos)), _chat_templates(folder, config))


def _read_definition(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        slow = [name for name in _SLOW_FILES if (folder / name).is_file()]
        found = f"only {', '.join(slow)}" if slow else "no tokenizer files"
        raise ModelError(
            f"no tokenizer.json here, {found}",
            where=str(folder),
            hint="write one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    definition = _read_json(path)
    if not isinstance(definition.get("model"), dict) or not isinstance(definition["model"].get("vocab"), dict):
        kind = definition["model"].get("type") if isinstance(definition.get("model"), dict) else None
        raise ModelError(f"tokenizer model {kind!r} is not supported; known: 'BPE'", where=str(path))
    definition["added_tokens"] = definition.get("added_tokens") or []
    # Left over from training: they would cut or pad prompts in silence.
    definition["truncation"] = definition["padding"] = None
    return definition


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"not readable as JSON: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise ModelError(f"holds a {type(value).__name__} where an object is expected", where=str(path))
    return value


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _more_tokens(config: dict[str, Any]) -> list[str]:
    listed = [config.get(name) or [] for name in _MORE_TOKENS]
    return [_content(token) for tokens in listed for token in (tokens.values() if isinstance(tokens, dict) else tokens)]


def _added(
    name: str, config: dict[str, Any], special_tokens: dict[str, str], ids: dict[str, int]
) -> tuple[str, int] | None:
    literal = special_tokens.get(name)
    return (literal, ids[literal]) if literal is not None and config.get(f"add_{name}") else None


def _generation_eos(folder: Path) -> list[int]:
    eos = _read_json(folder / "generation_config.json").get("eos_token_id")
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The separate template files, if there are any, else those of tokenizer_config.json."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    template = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template") or {}
    if isinstance(template, str):
        return {"default": template}
    return template if isinstance(template, dict) else {entry["name"]: entry["template"] for entry in template}
