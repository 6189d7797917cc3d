"""The template environment: what templates may do, and what is kept from them."""

from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from support.chat_templates import HEADERS, SMOLLM2, TOOLS, TURNS

from batchgen.errors import ModelError, RowError, SpecError
from batchgen.text.template import ChatTemplate

USER = [{"role": "user", "content": "<b>'é' & \"q\"</b>"}]


def render(source: str, messages: list[dict[str, Any]] = USER, tools: Any = None, **options: Any) -> str:
    return ChatTemplate(source, **options).render(messages, tools)


def failure(source: str, messages: list[dict[str, Any]] = USER) -> str:
    with pytest.raises(RowError) as failed:
        render(source, messages)
    assert failed.value.code == "template"
    return str(failed.value)


TALKS: list[list[dict[str, Any]]] = [
    USER,
    [{"role": "user", "content": "  a \n"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    [{"role": "system", "content": "s"}, *USER],
    [
        *USER,
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, "ü", None]}}}]},
        {"role": "tool", "content": "3"},
    ],
]
SCHEMA = [{"type": "function", "function": {"name": "f", "description": "<ä>", "parameters": {"x": {"type": "int"}}}}]


@pytest.mark.parametrize("source", [HEADERS, SMOLLM2, TOOLS, TURNS], ids=["headers", "smollm2", "tools", "turns"])
@pytest.mark.parametrize("tools", [None, SCHEMA, []])
@pytest.mark.parametrize("talk", TALKS)
def test_rendering_is_that_of_transformers(source: str, talk: list[dict[str, Any]], tools: Any) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {"bos_token": "<|begin|>", "eos_token": "<|eot|>", "enable_thinking": False}
    try:
        [expected], _ = render_jinja_template([talk], tools, None, source, add_generation_prompt=True, **variables)
    except Exception:
        assert failure(source, talk)
    else:
        assert render(source, talk, tools, variables=variables) == expected


def test_json_is_plain() -> None:
    assert render("{{ messages | tojson }}") == """[{"role": "user", "content": "<b>'é' & \\"q\\"</b>"}]"""
    assert render("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true, indent=1) }}") == (
        '{\n "a": "\\u00e9",\n "b": 1\n}'
    )
    assert render("{{ [1, 2] | tojson(separators=(',', ':')) }}") == "[1,2]"


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    leave = "    {% if i == 1 %}{% continue %}{% endif %}\n    {% if i == 3 %}{% break %}{% endif %}\n"
    assert render("{% for i in range(9) %}\n" + leave + "{{ i }}\n{% endfor %}\n") == "0\n2\n"


def test_variables_and_the_opening_of_the_answer() -> None:
    assert (
        render("{{ add_generation_prompt }} {{ tools }} {{ documents }} {{ x }}", variables={"x": 1})
        == "True None None 1"
    )
    assert render("{{ add_generation_prompt }}", variables={"add_generation_prompt": False}) == "False"
    assert render("{{ messages[0].role }}", variables={"messages": "other"}) == "user"


def test_a_refusal_speaks_in_the_templates_words() -> None:
    talk = [{"role": "assistant", "content": "x"}]
    assert failure(TURNS, talk).endswith("refuses the messages: roles must alternate: user, assistant, user, ...")


def test_a_failure_names_its_line_and_nothing_that_varies() -> None:
    assert failure("{# #}\n\n{{ messages[0].content + 3 }}") == "the chat template fails at line 3 (TypeError)"
    assert failure("a\n{{ nothing.at.all }}") == "the chat template fails at line 2 (UndefinedError)"
    assert failure("{% macro f() %}{{ 1 / 0 }}{% endmacro %}\n{{ f() }}") == (
        "the chat template fails at line 1 (ZeroDivisionError)"
    )


def test_source_that_is_no_template() -> None:
    with pytest.raises(ModelError, match="endfor") as refused:
        ChatTemplate("{% for m in messages %}\n{{ m }}")
    assert "line" in refused.value.where


def test_characters_that_marks_are_made_of() -> None:
    with pytest.raises(ModelError, match="private-use"):
        ChatTemplate("\U00100000")
    shown = render("{{ ('é' ~ x) | tojson(ensure_ascii=true) }}", variables={"x": "\U00100001"})
    assert shown == '"\\u00e9\U00100001"'


CLOCK = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"


def test_the_clock_is_pinned_or_refused() -> None:
    assert render(CLOCK, now=datetime(2026, 1, 2)) == "02 Jan 2026"
    with pytest.raises(SpecError, match="day to day") as refused:
        render(CLOCK)
    assert refused.value.where == "prompts.template_now"
    assert render("{% if false %}" + CLOCK + "{% endif %}x") == "x"


@pytest.mark.parametrize("source", ["{{ [1, 2] | random }}", "{{ lipsum() }}"])
def test_chance_is_not_to_be_had(source: str) -> None:
    with pytest.raises((ModelError, RowError), match=r"random|UndefinedError"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now['__globals__'] }}",
        "{{ messages | attr('__class__') | attr('__mro__') }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format(messages).x }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ range(10000000) | list }}",
        "{% set ns = namespace(x=1) %}{{ ns.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    """Each is refused, or finds nothing."""
    talk = [dict(USER[0])]
    with suppress(RowError):
        assert ChatTemplate(source).render(talk) == ""
    assert talk == USER
