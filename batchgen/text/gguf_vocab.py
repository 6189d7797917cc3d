"""Rebuild a tokenizer from the metadata of a GGUF file.

A GGUF file carries the vocabulary and the merges, and names the rest ("smollm", "llama-bpe", ...). What the
names mean is written down here: a name that is not known is refused, since a wrong split gives wrong ids in silence.
"""

from collections.abc import Mapping
from typing import Any

from batchgen.errors import ModelError, nearest
from batchgen.text.parts import TokenizerParts, added_token, bos_eos_processor

_WHERE = "GGUF metadata"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_NAMED_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator",
                 "pad_token": "padding", "cls_token": "cls", "mask_token": "mask"}  # fmt: skip

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split_then_bytes(regex: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(use_regex=False)]


_GPT2 = [_byte_level(use_regex=True)]
_LLAMA3 = _split_then_bytes(_LLAMA3_SPLIT)
PRE_TOKENIZERS: Mapping[str, list[dict[str, Any]]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": [{"type": "Digits", "individual_digits": True}, *_GPT2],
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _split_then_bytes(_QWEN2_SPLIT),
}


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The tokenizer that the metadata of a GGUF file describes; arrays are lists.

    Raises ModelError: a tokenizer model or pre-tokenizer that is not known, missing or contradictory keys.
    """
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    kind = str(metadata.get("tokenizer.ggml.model"))
    if kind not in builders:
        raise ModelError(f"tokenizer model {kind!r} is not supported", where=_WHERE, hint=nearest(kind, builders))
    try:
        return _with_special_tokens(builders[kind](metadata), metadata)
    except KeyError as error:
        raise ModelError(f"the key {error} is missing", where=_WHERE) from error


def _byte_level_bpe(metadata: Mapping[str, Any]) -> dict[str, Any]:
    pre = str(metadata.get("tokenizer.ggml.pre"))
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(f"pre-tokenizer {pre!r} is not supported", where=_WHERE, hint=f"known: {known}")
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    llama3 = PRE_TOKENIZERS[pre] is _LLAMA3
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "decoder": {**_byte_level(use_regex=True), "add_prefix_space": True},
        "model": _bpe(_vocabulary(metadata), merges, ignore_merges=llama3),
    }


def _sentencepiece_bpe(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """SentencePiece BPE with byte fallback, as a tokenizer.json expresses it: spaces become U+2581, one in front."""
    space, prefix = "\u2581", bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    vocab = _vocabulary(metadata)
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": space}] if prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": space}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = metadata["tokenizer.ggml.tokens"][metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*normalizers, {"type": "Replace", "pattern": {"String": " "}, "content": space}],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocab, _merges_by_score(metadata), byte_fallback=True, fuse_unk=True, unk_token=unknown),
    }


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id, without the unused ids that only pad the embedding."""
    kinds = metadata["tokenizer.ggml.token_type"]
    tokens = metadata["tokenizer.ggml.tokens"]
    if len(kinds) != len(tokens):
        raise ModelError(f"{len(tokens)} tokens but {len(kinds)} token types", where=_WHERE)
    used = [(token, i) for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED]
    vocab = dict(used)
    if len(vocab) != len(used):
        twice = next(token for token, i in used if vocab[token] != i)
        raise ModelError(f"token {twice!r} is in the vocabulary twice", where=_WHERE)
    return vocab


def _merges_by_score(metadata: Mapping[str, Any]) -> list[list[str]]:
    """Every way to join two pieces into a third, the best third first.

    SentencePiece always joins the pair whose result scores highest; a merge list ranks pairs, so the results rank them.
    """
    kinds, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    pieces = zip(metadata["tokenizer.ggml.tokens"], kinds, scores, strict=True)
    score = {piece: value for piece, kind, value in pieces if kind == _NORMAL}
    joins = [
        (-value, piece, cut)
        for piece, value in score.items()
        for cut in range(1, len(piece))
        if piece[:cut] in score and piece[cut:] in score
    ]
    return [[piece[:cut], piece[cut:]] for _, piece, cut in sorted(joins)]


def _bpe(vocab: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    defaults = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **defaults, **flags, "vocab": vocab, "merges": merges, **options}


def _with_special_tokens(definition: dict[str, Any], metadata: Mapping[str, Any]) -> TokenizerParts:
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    sentencepiece = metadata["tokenizer.ggml.model"] == "llama"
    special_kinds = {_CONTROL, _UNKNOWN} if sentencepiece else {_CONTROL}
    definition["added_tokens"] = [
        added_token(i, token, special=kind in special_kinds)
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in special_kinds or kind == _USER_DEFINED
    ]
    named = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _NAMED_TOKENS.items()}
    for name, token_id in named.items():
        if token_id is not None and token_id >= len(tokens):
            raise ModelError(f"{name} has id {token_id}, the vocabulary has {len(tokens)}", where=_WHERE)

    def added(name: str, *, default: bool) -> tuple[str, int] | None:
        token_id = named[name]
        wanted = metadata.get(f"tokenizer.ggml.add_{name}", default)
        return (tokens[token_id], token_id) if wanted and token_id is not None else None

    bos_by_default = sentencepiece or definition["model"]["ignore_merges"]
    definition["post_processor"] = bos_eos_processor(
        added("bos_token", default=bos_by_default), added("eos_token", default=False)
    )
    eos = [named["eos_token"], metadata.get("tokenizer.ggml.eot_token_id")]
    return TokenizerParts(
        definition={"version": "1.0", "truncation": None, "padding": None, **definition},
        special_tokens={name: tokens[token_id] for name, token_id in named.items() if token_id is not None},
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in eos if token_id is not None)),
        chat_templates=_chat_templates(metadata),
    )


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    names = {name: f"tokenizer.chat_template.{name}" for name in metadata.get("tokenizer.chat_templates", [])}
    keys = {"default": "tokenizer.chat_template", **names}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}
