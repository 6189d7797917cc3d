"""A tokenizer rebuilt from GGUF metadata gives the ids of the tokenizer.json that the metadata was made from."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import pytest
from support.tiny_tokenizers import CHATML, CHATML_TOKENS, byte_level, gguf_metadata, save, sentencepiece
from support.varied_strings import varied_strings
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as PlainTokenizer

from batchgen.errors import ModelError
from batchgen.models.gguf_file import GgufFile
from batchgen.text.gguf_vocab import PRE_TOKENIZERS
from batchgen.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent / "data" / "smollm_ids_sha256.json"
STRINGS = [text for strings in varied_strings(40).values() for text in strings]


@pytest.mark.model
def test_smollm_ids_are_those_of_its_tokenizer_json(smollm: Path) -> None:
    """The digests are of the ids that the tokenizers library gave for the tokenizer.json of SmolLM-135M.

    Its vocabulary and merges are those of SmolLM2 in the GGUF file, entry for entry. Each string is encoded
    as plain text, then with control tokens.
    """
    tokenizer = Tokenizer.from_gguf(GgufFile(smollm).metadata)
    digests = {}
    for kind, strings in varied_strings().items():
        digest = sha256()
        for text in strings:
            for special in ("text", "allow"):
                digest.update(json.dumps(tokenizer.encode(text, special=special)).encode() + b"\n")
        digests[kind] = digest.hexdigest()
    assert digests == json.loads(GOLDEN.read_text())


@pytest.mark.model
def test_smollm_facts_and_round_trips(smollm: Path) -> None:
    tokenizer = Tokenizer.from_gguf(GgufFile(smollm).metadata)
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, (2,))
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((), ())
    assert "SmolLM" in (tokenizer.chat_template or "")
    for kind in ("words", "numbers", "white_space", "code", "emoji", "control_look_alikes", "cjk"):
        for text in varied_strings()[kind]:
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


# Written out again, by hand: the split of each name as the makers of the models publish it.
SPLITS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_byte_level_equals_its_tokenizer_json(pre: str) -> None:
    definition = byte_level(CHATML_TOKENS, pre_tokenizer=SPLITS[pre])
    plain = PlainTokenizer.from_str(json.dumps(definition))
    ours = Tokenizer.from_gguf(gguf_metadata(definition, "gpt2", pre, eos_token_id=2, add_bos_token=False))
    for text in STRINGS:
        assert ours.encode(text, special="allow") == plain.encode(text).ids


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_byte_level_equals_transformers(pre: str, tmp_path: Path) -> None:
    """transformers reads the GGUF file itself, with split rules of its own. It applies no NFC: that is kept out."""
    definition = byte_level(CHATML_TOKENS)
    metadata = gguf_metadata(definition, "gpt2", pre, bos_token_id=1, eos_token_id=2, add_bos_token=False)
    write_gguf(tmp_path / "tiny.gguf", metadata)
    reference = load_with_transformers(tmp_path / "tiny.gguf")
    ours = Tokenizer.from_gguf(GgufFile(tmp_path / "tiny.gguf").metadata)
    for text in STRINGS:
        if pre == "qwen2" and not is_nfc(text):
            continue
        assert ours.encode(text, special="allow") == reference.encode(text, add_special_tokens=False)


def test_qwen2_normalizes_to_nfc() -> None:
    ours = Tokenizer.from_gguf(gguf_metadata(byte_level(CHATML_TOKENS), "gpt2", "qwen2"))
    assert ours.encode("e\u0301") == ours.encode("\u00e9")


def test_sentencepiece_equals_its_tokenizer_json() -> None:
    """The merges are found again from the scores alone."""
    definition = sentencepiece()
    plain = PlainTokenizer.from_str(json.dumps(definition))
    metadata = gguf_metadata(definition, "llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    ours = Tokenizer.from_gguf(metadata)
    assert (ours.prefix_ids, ours.eos_token_ids) == ((1,), (2,))
    for text in STRINGS:
        ids = ours.encode(text, add_special_tokens=False, special="allow")
        assert ids == plain.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == plain.decode(ids, skip_special_tokens=False)


def test_no_space_prefix() -> None:
    metadata = gguf_metadata(sentencepiece(), "llama", add_space_prefix=False, add_bos_token=False)
    ours = Tokenizer.from_gguf(metadata)
    assert ours.decode(ours.encode(" the fox")) == " the fox"
    assert ours.encode("the fox") != ours.encode(" the fox")


def test_token_types_decide() -> None:
    definition = byte_level([*CHATML_TOKENS, "<think>", "[PAD4]"])
    metadata = gguf_metadata(definition, "gpt2", "gpt-2", add_eos_token=True, eos_token_id=2, eot_token_id=0)
    metadata["tokenizer.ggml.token_type"][3:5] = [4, 5]  # user defined, unused
    ours = Tokenizer.from_gguf(metadata)
    assert ours.encode("<think>", add_special_tokens=False) == [3]
    assert ours.decode([3, 1]) == "<think>"
    assert ours.token_id("[PAD4]") is None
    assert ours.decode([4]) == ""
    assert (ours.suffix_ids, ours.eos_token_ids) == ((2,), (2, 0))


def test_chat_templates_by_name() -> None:
    metadata = gguf_metadata(byte_level(CHATML_TOKENS), "gpt2", "gpt-2")
    metadata |= {
        "tokenizer.chat_template": CHATML,
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "tools",
    }
    assert Tokenizer.from_gguf(metadata).chat_templates == {"default": CHATML, "tool_use": "tools"}


def test_unknown_kinds_are_refused_with_the_list() -> None:
    metadata = gguf_metadata(byte_level(CHATML_TOKENS), "gpt2", "tekken")
    with pytest.raises(ModelError, match="'tekken'") as refused:
        Tokenizer.from_gguf(metadata)
    assert all(name in refused.value.hint for name in PRE_TOKENIZERS)
    with pytest.raises(ModelError, match="'bert'"):
        Tokenizer.from_gguf(metadata | {"tokenizer.ggml.model": "bert"})
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(ModelError, match="pre-tokenizer"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.token_type": [1]}, "1 token types"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token has id 1000000"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "not valid"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    metadata = gguf_metadata(byte_level(CHATML_TOKENS), "gpt2", "gpt-2")
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(metadata | change)


def test_a_missing_or_double_key_is_refused() -> None:
    metadata = gguf_metadata(byte_level(CHATML_TOKENS), "gpt2", "gpt-2")
    metadata["tokenizer.ggml.tokens"][5] = metadata["tokenizer.ggml.tokens"][4]
    with pytest.raises(ModelError, match="twice"):
        Tokenizer.from_gguf(metadata)
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ModelError, match="merges"):
        Tokenizer.from_gguf(metadata)


def is_nfc(text: str) -> bool:
    from unicodedata import is_normalized

    return is_normalized("NFC", text)


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        kinds[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_with_transformers(path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    save(path.parent, {}, tokenizer_class="PreTrainedTokenizerFast")
    (path.parent / "tokenizer.json").unlink()
    return PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
