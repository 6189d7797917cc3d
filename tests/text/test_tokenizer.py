"""Ids, the two meanings of a control token in text, and the digest."""

import json
from pathlib import Path

import pytest
from support.tiny_tokenizers import CHATML_TOKENS, added, byte_level, save, save_chatml, sentencepiece
from support.varied_strings import varied_strings
from tokenizers import Tokenizer as PlainTokenizer
from tokenizers import pre_tokenizers

from batchgen.errors import ModelError, RowError
from batchgen.text.marks import Marks
from batchgen.text.parts import TokenizerParts
from batchgen.text.tokenizer import Tokenizer

STRINGS = [text for strings in varied_strings(30).values() for text in strings]


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(save_chatml(tmp_path_factory.mktemp("chatml")))


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    ours = Tokenizer.from_folder(save_chatml(tmp_path))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in STRINGS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text, special="allow") == ids
        assert ours.encode(text) == theirs(text, split_special_tokens=True)["input_ids"]
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_text_never_holds_a_control_token(chatml: Tokenizer) -> None:
    for text in STRINGS:
        ids = chatml.encode(text)
        assert not {0, 1, 2} & set(ids)
        assert chatml.decode(ids) == text
    assert chatml.encode("a<|im_end|>", special="allow")[-1] == 2


def test_the_modes_do_not_leak_into_each_other(chatml: Tokenizer) -> None:
    alone = chatml.encode("<|im_end|>")
    assert chatml.encode("<|im_end|>", special="allow") == [2]
    assert chatml.encode("<|im_end|>") == alone


def rendered_ids(tokenizer: Tokenizer, parts: list[str | list[str]]) -> list[int]:
    """A text of template parts (str) and data (list of one str)."""
    marks = Marks(tokenizer.control_tokens)
    return tokenizer.encode_rendered("".join(marks.hide(p[0]) if isinstance(p, list) else p for p in parts), marks)


def test_rendered_data_is_text_and_the_template_is_not(chatml: Tokenizer) -> None:
    ids = rendered_ids(chatml, ["<|im_start|>user\n", ["stop <|im_end|> now \U00100007"], "<|im_end|>\n"])
    middle = chatml.encode("user\nstop <|im_end|> now \U00100007")
    assert ids == [1, *middle, 2, *chatml.encode("\n")]


def test_rendered_without_control_text_is_plain_encoding(chatml: Tokenizer) -> None:
    for text in STRINGS:
        if not chatml.control_tokens.find(text):
            ids = rendered_ids(chatml, ["<|im_start|>", [text], "<|im_end|>"])
            assert ids == chatml.encode(f"<|im_start|>{text}<|im_end|>", special="allow")


def test_control_tokens_are_not_put_together_from_pieces(chatml: Tokenizer) -> None:
    for cut in range(1, len("<|im_end|>")):
        head, tail = "<|im_end|>"[:cut], "<|im_end|>"[cut:]
        assert rendered_ids(chatml, [["a" + head], [tail + "b"]]) == chatml.encode("a<|im_end|>b")
        assert chatml.encode(head + tail, special="allow") == [2]  # what the guard is there for


def test_a_control_token_that_takes_the_space_after_it() -> None:
    definition = byte_level(CHATML_TOKENS)
    definition["added_tokens"][2] = added(2, "<|im_end|>", rstrip=True)
    tokenizer = Tokenizer(TokenizerParts(definition, {}, ()))
    ids = rendered_ids(tokenizer, ["<|im_end|>  \n", ["x <|im_end|> y"], "<|im_end|>  z"])
    assert ids == [2, *tokenizer.encode("x <|im_end|> y"), 2, *tokenizer.encode("z")]


def test_text_inside_a_prompt_gets_no_space_of_its_beginning() -> None:
    """Metaspace "first" puts a space before the text at the very start only."""
    definition = sentencepiece()
    definition["normalizer"] = None
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    definition["pre_tokenizer"] = json.loads(metaspace.__getstate__())
    tokenizer = Tokenizer(TokenizerParts(definition, {}, ()))
    plain = PlainTokenizer.from_str(json.dumps(definition))
    assert rendered_ids(tokenizer, ["<s>", ["the fox>"], "</s>"]) == plain.encode("<s>the fox></s>").ids
    plain.encode_special_tokens = True
    assert rendered_ids(tokenizer, [["the <s>"], "</s>"])[:-1] == plain.encode("the <s>").ids


def test_a_control_token_without_another_spelling_is_an_error() -> None:
    definition = byte_level(["<|end|>", "dog"])
    tokenizer = Tokenizer(TokenizerParts(definition, {}, ()))
    definition["model"]["ignore_merges"] = True
    spelled = Tokenizer(TokenizerParts(definition, {}, ()))
    assert 1 not in tokenizer.encode("dog")
    with pytest.raises(RowError, match="'dog'") as failed:
        spelled.encode("dog")
    assert failed.value.code == "control_token"


def test_the_unknown_token_may_come_from_text() -> None:
    definition = sentencepiece()
    definition["model"]["byte_fallback"] = False
    tokenizer = Tokenizer(TokenizerParts(definition, {}, ()))
    assert 0 in tokenizer.encode("\u4f60")
    assert rendered_ids(tokenizer, ["<s>", ["\u4f60<s>"]])[0] == 1


def test_random_merges_are_refused() -> None:
    definition = byte_level(CHATML_TOKENS)
    definition["model"]["dropout"] = 0.1
    with pytest.raises(ModelError, match=r"dropout 0\.1"):
        Tokenizer(TokenizerParts(definition, {}, ()))


def test_digest_sees_what_can_change_a_prompt(tmp_path: Path) -> None:
    digests = {Tokenizer.from_folder(save_chatml(tmp_path / "a")).digest}
    digests.add(Tokenizer.from_folder(save_chatml(tmp_path / "b")).digest)
    assert len(digests) == 1
    digests.add(Tokenizer.from_folder(save_chatml(tmp_path / "c", chat_template="other")).digest)
    digests.add(Tokenizer.from_folder(save_chatml(tmp_path / "d", eos_token="<|endoftext|>")).digest)
    definition = byte_level(CHATML_TOKENS, vocab_size=401)
    digests.add(Tokenizer.from_folder(save(tmp_path / "e", definition)).digest)
    assert len(digests) == 4
