"""What the files of a model folder say, and what happens when they are missing or disagree."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizers import CHATML, CHATML_TOKENS, added, bos_processor, byte_level, save, save_chatml

from batchgen.errors import ModelError
from batchgen.text.hf_folder import read_folder
from batchgen.text.tokenizer import Tokenizer


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_names_ids_and_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(save_chatml(tmp_path))
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.chat_template == CHATML


@pytest.mark.parametrize("slow", ["tokenizer.model", "vocab.json", None])
def test_without_tokenizer_json_the_way_out_is_named(tmp_path: Path, slow: str | None) -> None:
    if slow:
        write(tmp_path, slow, "{}")
    with pytest.raises(ModelError, match=slow or "no tokenizer files") as refused:
        read_folder(tmp_path)
    assert "save_pretrained" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [("tokenizer.json", "{"), ("tokenizer_config.json", "[]"), ("tokenizer.json", '{"model": {"type": "X"}}')],
)
def test_torn_or_strange_files_are_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    write(save_chatml(tmp_path), name, text)
    with pytest.raises(ModelError) as refused:
        read_folder(tmp_path)
    assert refused.value.where.endswith(name)


def test_training_leftovers_do_not_cut_or_pad(tmp_path: Path) -> None:
    definition = byte_level(CHATML_TOKENS)
    definition["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    definition["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    text = "The lazy dog, \u4f60!"
    tokenizer = Tokenizer.from_folder(save(tmp_path, definition))
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_added_tokens_of_the_config_join(tmp_path: Path) -> None:
    definition = byte_level(CHATML_TOKENS)
    size = len(definition["model"]["vocab"])
    decoder = {str(size): {"content": "<|tool|>", "special": True}, "1": {"content": "<|im_start|>", "special": True}}
    tokenizer = Tokenizer.from_folder(save(tmp_path, definition, added_tokens_decoder=decoder))
    assert tokenizer.encode("<|tool|>", special="allow") == [size]
    assert size not in tokenizer.encode("<|tool|>")
    assert tokenizer.vocab_size == size + 1


def test_a_token_with_two_ids_is_refused(tmp_path: Path) -> None:
    save_chatml(tmp_path, added_tokens_decoder={"7": {"content": "<|im_start|>", "special": True}})
    with pytest.raises(ModelError, match="id 1 in one tokenizer file and 7 in another"):
        read_folder(tmp_path)


def test_a_gap_in_the_ids_is_refused(tmp_path: Path) -> None:
    definition = byte_level(CHATML_TOKENS)
    definition["added_tokens"].append(added(5000, "<|far|>"))
    with pytest.raises(ModelError, match="5000") as refused:
        Tokenizer.from_folder(save(tmp_path, definition))
    assert refused.value.where.endswith("tokenizer.json")


def test_named_tokens_are_special_whatever_tokenizer_json_says(tmp_path: Path) -> None:
    definition = byte_level([*CHATML_TOKENS, "<|mark|>", "<|more|>"])
    definition["added_tokens"] = definition["added_tokens"][:3]
    for entry in definition["added_tokens"]:
        entry["special"] = False
    save(tmp_path, definition, eos_token={"content": "<|im_end|>"}, additional_special_tokens=["<|mark|>"])
    write(tmp_path, "special_tokens_map.json", {"pad_token": "<|endoftext|>", "eos_token": "<|more|>"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert set(tokenizer.control_tokens.literals) == {"<|im_end|>", "<|mark|>", "<|endoftext|>"}
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"  # the config goes before the older file


def test_eos_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"eos_token '<\|nowhere\|>'"):
        read_folder(save_chatml(tmp_path, eos_token="<|nowhere|>"))


def test_post_processor_wins_over_the_flags(tmp_path: Path) -> None:
    definition = byte_level(CHATML_TOKENS)
    flags = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": True, "add_eos_token": True}
    by_flags = Tokenizer.from_folder(save(tmp_path / "flags", definition, **flags))
    assert (by_flags.prefix_ids, by_flags.suffix_ids) == ((1,), (2,))
    definition["post_processor"] = bos_processor("<|endoftext|>", 0)
    by_file = Tokenizer.from_folder(save(tmp_path / "file", definition, **flags))
    assert (by_file.prefix_ids, by_file.suffix_ids) == ((0,), ())


def test_generation_config_only_when_asked(tmp_path: Path) -> None:
    write(save_chatml(tmp_path), "generation_config.json", {"eos_token_id": [0, 2], "temperature": 0.6})
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (2,)
    assert Tokenizer.from_folder(tmp_path, use_generation_config=True).eos_token_ids == (2, 0)
    write(tmp_path, "generation_config.json", {"eos_token_id": 0})
    assert Tokenizer.from_folder(tmp_path, use_generation_config=True).eos_token_ids == (2, 0)


def test_places_of_chat_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert read_folder(save_chatml(tmp_path, chat_template=named)).chat_templates == {"default": "d", "tool_use": "t"}
    write(tmp_path, "chat_template.json", {"chat_template": "j"})
    assert read_folder(tmp_path).chat_templates == {"default": "j"}
    write(tmp_path, "chat_template.jinja", "file")
    assert read_folder(tmp_path).chat_templates == {"default": "file"}
    write(tmp_path, "additional_chat_templates/tool_use.jinja", "more")
    assert read_folder(tmp_path).chat_templates == {"default": "file", "tool_use": "more"}
    assert read_folder(save_chatml(tmp_path / "none", chat_template=None)).chat_templates == {}
