"""Tokenizers small enough to train in a test, saved as the files that a model folder has."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it does so again: 1, 22, 333, 4444!",
    "user assistant system tool content said hello to the world; it's what they've done.",
    "def f(x):\n    return x + 1\n\n\nif x == 10:\n\tprint('ten')\r\n",
    "été naïve 你好世界 こんにちは привет 😀",
] * 4

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(special: list[str], *, pre_tokenizer: Any = None, vocab_size: int = 400) -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE with `special` first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return definition_of(tokenizer)


def sentencepiece(*, vocab_size: int = 160) -> dict[str, Any]:
    """The tokenizer.json of a Llama-2 kind of BPE: U+2581 for spaces, and bytes for what the vocabulary lacks."""
    space = "\u2581"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)])
    ascii_only = [text.encode("ascii", "ignore").decode() for text in CORPUS]
    tokenizer.train_from_iterator(ascii_only, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    definition = definition_of(tokenizer)
    pieces = sorted(definition["model"]["vocab"], key=definition["model"]["vocab"].__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    definition["model"] |= {
        "vocab": {token: i for i, token in enumerate(tokens)},
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
    }
    definition["added_tokens"] = [added(i, token) for i, token in enumerate(tokens[:3])]
    definition["decoder"] = json.loads(
        decoders.Sequence(
            [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ).__getstate__()
    )
    return definition


def definition_of(tokenizer: Tokenizer) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    return definition


def added(token_id: int, content: str, *, special: bool = True, rstrip: bool = False) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}


def bos_processor(bos: str, token_id: int) -> dict[str, Any]:
    """A post-processor that puts `bos` before a text."""
    token = {"SpecialToken": {"id": bos, "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [token, text[0]],
        "pair": [token, *text],
        "special_tokens": {bos: {"id": bos, "ids": [token_id], "tokens": [bos]}},
    }


def save(folder: Path, definition: dict[str, Any], **config: Any) -> Path:
    """A folder with tokenizer.json and a tokenizer_config.json of `config`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_chatml(folder: Path, **config: Any) -> Path:
    """The kind of tokenizer that SmolLM2 and Qwen have, in small."""
    definition = byte_level(CHATML_TOKENS)
    return save(
        folder,
        definition,
        **{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML, **config},
    )


def gguf_metadata(definition: dict[str, Any], model: str, pre: str | None = None, **more: Any) -> dict[str, Any]:
    """What a GGUF file says about `definition`. Names of `more` stand below `tokenizer.ggml`."""
    vocab = definition["model"]["vocab"] | {entry["content"]: entry["id"] for entry in definition["added_tokens"]}
    kinds = {entry["content"]: 3 if entry["special"] else 4 for entry in definition["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    assert [vocab[token] for token in tokens] == list(range(len(tokens)))
    fields: dict[str, Any] = {"model": model, "tokens": tokens}
    if model == "gpt2":
        merges = definition["model"]["merges"]
        fields |= {"pre": pre, "merges": [" ".join(pair) for pair in merges]}
        fields["token_type"] = [kinds.get(token, 1) for token in tokens]
    else:
        fields["scores"] = [0.0 if i < 259 else float(259 - i) for i in range(len(tokens))]
        fields["token_type"] = [2, 3, 3] + [6] * 256 + [kinds.get(token, 1) for token in tokens[259:]]
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | more).items()}
