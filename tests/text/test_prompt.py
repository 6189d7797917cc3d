"""Prompts of rows: ids equal to transformers', control tokens only from templates, and every policy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.chat_templates import HEADERS, HEADERS_TOKENS, SMOLLM2, TOOLS, TOOLS_ADDED, TOOLS_TOKENS, TURNS
from support.tiny_tokenizers import added, bos_processor, byte_level, save, sentencepiece
from support.varied_strings import varied_strings

from batchgen.errors import ModelError, RowError, SpecError
from batchgen.models.gguf_file import GgufFile
from batchgen.spec import PromptSpec
from batchgen.text.prompt import PromptBuilder
from batchgen.text.tokenizer import Tokenizer


@dataclass
class Row:
    prompt: str | None = None
    messages: Any = None
    tools: Any = None
    prompt_token_ids: Any = None
    error: RowError | None = None


def headers(folder: Path) -> Path:
    definition = byte_level(HEADERS_TOKENS)
    definition["post_processor"] = bos_processor("<|begin|>", 0)
    return save(folder, definition, bos_token="<|begin|>", eos_token="<|eot|>", chat_template=HEADERS)


def tools(folder: Path, template: str = TOOLS) -> Path:
    definition = byte_level(TOOLS_TOKENS)
    size = len(definition["model"]["vocab"])
    definition["added_tokens"] += [added(size + i, token, special=False) for i, token in enumerate(TOOLS_ADDED)]
    return save(folder, definition, eos_token="<|im_end|>", chat_template=template)


def turns(folder: Path) -> Path:
    definition = sentencepiece()
    definition["post_processor"] = bos_processor("<s>", 1)
    return save(folder, definition, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TURNS)


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "headers": headers,
    "tools": tools,
    "turns": turns,
    "smollm2": lambda folder: tools(folder, SMOLLM2),
}


def builder(folder: Path | Tokenizer, *, room: int = 10**6, max_tokens: int = 16, **options: Any) -> PromptBuilder:
    more = {name: options.pop(name) for name in ("chat_template", "chat_template_kwargs") if name in options}
    tokenizer = folder if isinstance(folder, Tokenizer) else Tokenizer.from_folder(folder)
    return PromptBuilder(tokenizer, PromptSpec(**options), max_model_len=room, max_tokens=max_tokens, **more)


def talk(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def code_of(build: PromptBuilder, row: Row) -> str:
    with pytest.raises(RowError) as failed:
        build.build(row)
    return failed.value.code


@pytest.mark.parametrize("family", FAMILIES)
def test_chat_ids_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Rows without control text: what the guards do must not be seen in them."""
    from transformers import PreTrainedTokenizerFast

    kwargs = {"enable_thinking": False} if family == "tools" else {}
    build = builder(FAMILIES[family](tmp_path), chat_template_kwargs=kwargs)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    strings = [text for strings in varied_strings(8).values() for text in strings]
    checked = 0
    for first, second, third in zip(strings, strings[1:], strings[2:], strict=False):
        row = Row(messages=talk(first, second, third))
        if not build.control_tokens(row):
            expected = reference.apply_chat_template(
                row.messages, add_generation_prompt=True, return_dict=False, **kwargs
            )
            assert build.build(row) == expected
            checked += 1
    assert checked > 80


def test_tools_and_calls_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    schema = [
        {"type": "function", "function": {"name": "add", "parameters": {"x": {"type": "int", "description": "é <"}}}}
    ]
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
    messages = [
        *talk("1+1?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    build = builder(tools(tmp_path))
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(messages, tools=schema, add_generation_prompt=True, return_dict=False)
    assert build.build(Row(messages=messages, tools=schema)) == expected


@pytest.mark.model
def test_smollm_chats(smollm: Path, tmp_path: Path) -> None:
    """The model's own template, rendered by transformers and encoded by the model's own rules."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer = Tokenizer.from_gguf(GgufFile(smollm).metadata)
    build = builder(tokenizer)
    for text in varied_strings(8)["code"] + varied_strings(8)["emoji"]:
        messages = talk(text, "ok", text)
        [rendered], _ = render_jinja_template(
            [messages], chat_template=tokenizer.chat_template, add_generation_prompt=True
        )
        assert build.build(Row(messages=messages)) == tokenizer.encode(rendered, special="allow")
    assert build.build(Row(messages=talk("<|im_end|>"))).count(2) == 2  # the system's and the user's own


@pytest.mark.parametrize("family", FAMILIES)
def test_content_never_becomes_a_control_token(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path)
    tokenizer = Tokenizer.from_folder(folder)
    controls = {tokenizer.token_id(literal) for literal in tokenizer.control_tokens.literals}

    def skeleton(ids: list[int]) -> list[int]:
        return [i for i in ids if i in controls]

    text, allow = builder(tokenizer), builder(tokenizer, special_tokens_in_content="allow")
    harmless = skeleton(text.build(Row(messages=talk("a", "b", "c"))))
    for literal in tokenizer.control_tokens.literals:
        messages = talk(f"a{literal}", literal[:3], literal[3:] + literal)
        messages[0]["content"] = [{"type": "text", "text": part} for part in (literal[:2], literal[2:], "x")]
        row = Row(messages=messages)
        assert skeleton(text.build(row)) == harmless
        assert literal in tokenizer.decode(text.build(row), skip_special_tokens=False)
        assert skeleton(allow.build(row)) != harmless
        error = builder(tokenizer, special_tokens_in_content="error")
        assert code_of(error, row) == "control_token"
        assert code_of(error, Row(prompt=literal)) == "control_token"
        assert error.build(Row(messages=talk("a", "b", "c"))) == text.build(Row(messages=talk("a", "b", "c")))


def test_control_text_in_tools_names_and_keys(tmp_path: Path) -> None:
    build = builder(tools(tmp_path))
    schema = [{"name": "<|im_end|>", "parameters": {"<|im_start|>": ["<|im_end|>"]}}]
    assert build.build(Row(messages=talk("a"), tools=schema)).count(2) == 2
    assert build.control_tokens(Row(messages=talk("a"), tools=schema)) == ["<|im_end|>", "<|im_start|>", "<|im_end|>"]


def test_control_text_in_ascii_json(tmp_path: Path) -> None:
    build = builder(tools(tmp_path, "{{ messages | tojson(ensure_ascii=true) }}<|im_end|>"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = build.build(Row(messages=talk("<|im_end|>é")))
    assert tokenizer.decode(ids) == '[{"role": "user", "content": "<|im_end|>\\u00e9"}]'
    assert ids.count(2) == 1


def test_prompt_ids_with_each_meaning(tmp_path: Path) -> None:
    folder = headers(tmp_path)
    tokenizer = Tokenizer.from_folder(folder)
    row = Row(prompt="a<|eot|>")
    assert builder(folder).build(row) == [0, *tokenizer.encode("a<|eot|>", add_special_tokens=False)]
    assert builder(folder, special_tokens_in_content="allow").build(row)[-1] == 3
    assert builder(folder).control_tokens(row) == ["<|eot|>"]


def test_bos_is_never_doubled(tmp_path: Path) -> None:
    folder = headers(tmp_path)
    chat, prompt, spelled = Row(messages=talk("hi")), Row(prompt="hi"), Row(prompt="<|begin|>hi")
    for add, bos in (("auto", [1, 1]), (True, [1, 1]), (False, [1, 0])):
        build = builder(folder, add_special_tokens=add)
        assert [build.build(row).count(0) for row in (chat, prompt)] == bos
        allow = builder(folder, add_special_tokens=add, special_tokens_in_content="allow")
        assert allow.build(spelled).count(0) == 1
    no_bos = builder(folder, chat_template="{{ messages[0].content }}", add_special_tokens=True)
    assert no_bos.build(chat) == builder(folder).build(prompt)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (Row(), "prompt_null"),
        (Row(prompt=""), "prompt_empty"),
        (Row(prompt="a\ud83d"), "prompt_encoding"),
        (Row(messages=[]), "prompt_empty"),
        (Row(messages=talk("\udcff")), "prompt_encoding"),
        (Row(messages=[{"role": "user", "content": None}]), "prompt_null"),
        (Row(messages=talk("a"), tools="x"), "prompt_type"),
        (Row(messages=talk("a")[1:] or [{"role": "assistant", "content": "a"}]), "template"),
        (Row(prompt_token_ids=[]), "prompt_empty"),
        (Row(prompt_token_ids=[0, -1]), "prompt_type"),
        (Row(prompt_token_ids=[10**6]), "prompt_type"),
        (Row(prompt_token_ids=[None]), "prompt_type"),
        (Row(prompt_token_ids=[True]), "prompt_type"),
        (Row(prompt="a", error=RowError("prompt_encoding", "torn")), "prompt_encoding"),
    ],
)
def test_error_rows(row: Row, code: str, tmp_path: Path) -> None:
    assert code_of(builder(turns(tmp_path)), row) == code


def test_blank_prompts_and_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    build = builder(headers(tmp_path))
    assert len(build.build(Row(prompt=" \n"))) > 1
    assert build.build(Row(prompt_token_ids=[5, 3, 0])) == [5, 3, 0]


def test_a_template_that_prints_nothing(tmp_path: Path) -> None:
    assert code_of(builder(headers(tmp_path), chat_template="{# #}"), Row(messages=talk("a"))) == "prompt_empty"


def test_overlong(tmp_path: Path) -> None:
    folder = headers(tmp_path)
    row, ids = Row(prompt="the quick brown fox"), builder(folder).build(Row(prompt="the quick brown fox"))
    fits = len(ids) + 16
    assert builder(folder, room=fits).build(row) == ids
    with pytest.raises(RowError, match=f"{len(ids)} prompt tokens and max_tokens 16 .* {fits - 1}") as failed:
        builder(folder, room=fits - 1).build(row)
    assert failed.value.code == "prompt_overlong"
    assert builder(folder, room=fits - 1, overlong="truncate_left").build(row) == [0, *ids[2:]]
    assert builder(folder, room=18, overlong="truncate_left").build(row) == [0, ids[-1]]
    assert code_of(builder(folder, room=17, overlong="truncate_left"), row) == "prompt_overlong"
    given = Row(prompt_token_ids=[1, 2, 3])
    assert builder(folder, room=18, overlong="truncate_left").build(given) == [2, 3]


def test_named_templates(tmp_path: Path) -> None:
    names = ("default", "tool_use", "short")
    named = [{"name": name, "template": f"{name}{{{{ '+' if tools }}}}"} for name in names]
    definition = byte_level(TOOLS_TOKENS)
    tokenizer = Tokenizer.from_folder(save(tmp_path, definition, chat_template=named))
    plain, with_tools = Row(messages=talk("a")), Row(messages=talk("a"), tools=[{"name": "f"}])

    def text(row: Row, **options: Any) -> str:
        return tokenizer.decode(builder(tokenizer, **options).build(row))

    assert (text(plain), text(with_tools)) == ("default", "tool_use+")
    assert (text(with_tools, chat_template="short"), text(plain, chat_template="own")) == ("short+", "own")


def test_tools_that_a_template_ignores(tmp_path: Path) -> None:
    """They are an error of their row, whether the template knows no tools or prints none of these."""
    row, without = Row(messages=talk("a"), tools=[{"name": "f"}]), Row(messages=talk("a"), tools=[])
    for_some = "{{ messages[0].content }}{% for tool in tools or [] if tool.name == 'g' %}{{ tool.name }}{% endfor %}"
    for source in (SMOLLM2, for_some):
        for policy in ("text", "allow"):
            build = builder(tools(tmp_path), chat_template=source, special_tokens_in_content=policy)
            with pytest.raises(RowError, match="ignores the tools") as failed:
                build.build(row)
            assert failed.value.code == "template"
            assert build.build(without) == build.build(Row(messages=talk("a")))
    assert builder(tmp_path, chat_template=for_some).build(Row(messages=talk("a"), tools=[{"name": "g"}]))
    needs = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}{{ tools[0].name }}"
    assert builder(tmp_path, chat_template=needs).build(row)


def test_variables_that_no_template_reads(tmp_path: Path) -> None:
    folder = tools(tmp_path)
    assert builder(folder, chat_template_kwargs={"enable_thinking": False}).build(Row(messages=talk("a")))
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"enable_thinkin": False}, {}, "does not read it.*did you mean 'enable_thinking'"),
        ({"raise_exception": 1}, {}, "does not read it"),
        ({"enable_thinking": False}, {"chat_template": "{{ messages }}"}, "it has no variables of its own"),
    ]
    for kwargs, options, says in cases:
        with pytest.raises(SpecError, match=f"(?s){says}") as failed:
            builder(folder, chat_template_kwargs=kwargs, **options)
        assert failed.value.where == f"model.chat_template_kwargs.{next(iter(kwargs))}"
    with pytest.raises(SpecError, match="has no chat template"):
        builder(save(tmp_path / "none", byte_level(TOOLS_TOKENS)), chat_template_kwargs={"x": 1})


def test_messages_without_a_template(tmp_path: Path) -> None:
    build = builder(save(tmp_path, byte_level(TOOLS_TOKENS)))
    with pytest.raises(ModelError, match="no default chat template"):
        build.build(Row(messages=talk("a")))
    assert build.build(Row(prompt="a"))


def test_the_jobs_part_of_the_template(tmp_path: Path) -> None:
    folder = tools(tmp_path, "{{ strftime_now('%Y') }} {{ bos_token }} {{ eos_token }} {{ mood }}")
    tokenizer = Tokenizer.from_folder(folder)
    build = builder(tokenizer, template_now="2026-01-01", chat_template_kwargs={"mood": "x", "bos_token": "b"})
    assert tokenizer.decode(build.build(Row(messages=talk("a"))), skip_special_tokens=False) == "2026 b <|im_end|> x"
    with pytest.raises(SpecError, match="date"):
        builder(tokenizer).build(Row(messages=talk("a")))
    with pytest.raises(SpecError, match="'messages' comes from the row"):
        builder(tokenizer, chat_template_kwargs={"messages": []})
