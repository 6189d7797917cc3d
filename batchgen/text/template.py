"""ChatTemplate: messages to text, by the Jinja template that comes with a model.

The environment is the one that such templates are written for (that of transformers), less what would let the
machine, the clock or chance into a prompt. Templates are code from strangers: they run in Jinja's sandbox.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import BatchgenError, ModelError, RowError, SpecError
from batchgen.text.marks import holds_mark, unescape_marks


class ChatTemplate:
    """A compiled template. `now` is the moment that it is told when it asks for the time.

    `variables` are what it sees beside messages and tools: the special tokens, and the job's chat_template_kwargs.
    Raises ModelError when the source is not valid.
    """

    def __init__(self, source: str, *, now: datetime | None = None, variables: Mapping[str, Any] | None = None) -> None:
        if holds_mark(source):
            raise ModelError(
                "the chat template writes private-use characters of plane 16, which stand for other text here"
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        del environment.filters["random"], environment.globals["lipsum"]
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(now),
        }
        try:
            self._template = environment.from_string(source)
            named = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ModelError(f"not a valid template: {error}", where=f"chat template line {line}") from error
        self.reads = frozenset(named - environment.globals.keys())  # variables that it may ask for
        self._variables = {"add_generation_prompt": True, "documents": None, **(variables or {})}

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        """The text of `messages` with the opening of the answer after it.

        Raises RowError "template" when the template refuses the messages or fails on them, and SpecError when it
        asks for the time and the job does not say it.
        """
        try:
            return self._template.render({**self._variables, "messages": messages, "tools": tools})
        except BatchgenError:
            raise
        except _RefusalError as error:
            raise RowError("template", f"the chat template refuses the messages: {error.message}") from error
        except Exception as error:  # a template can fail in any way that Python can
            name, line = type(error).__name__, _template_line(error.__traceback__)
            # The library's words may change with its version, and would change the bytes of the row.
            raise RowError("template", f"the chat template fails at line {line} ({name})") from error


class _RefusalError(TemplateError):
    """The template called raise_exception."""


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks, for training, what the assistant said; here it prints it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape HTML."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return unescape_marks(text) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _clock(now: datetime | None) -> Any:
    def strftime_now(format: str) -> str:
        if now is None:
            raise SpecError(
                "the chat template asks for the date, so prompts would change from day to day",
                where="prompts.template_now",
                hint="set it, for example to 2026-01-01",
            )
        return now.strftime(format)

    return strftime_now


def _template_line(trace: TracebackType | None) -> int:
    """The line of the template where the innermost of its frames stands; Jinja maps them to template lines."""
    line = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
