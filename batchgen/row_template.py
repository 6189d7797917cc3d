"""Prompt templates over the columns of a row: Jinja in its sandbox, that fails where it would guess.

A name that no column has, a null, and anything that is neither text nor a number may not be printed: each would
put a word into a prompt that nobody wrote.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import RowError


class TemplateFault(ValueError):
    """A source that is no template."""


class RowTemplate:
    """A compiled template. `names` are the columns that it reads."""

    def __init__(self, source: str) -> None:
        """Raises TemplateFault for what is no template, and for one that reads other files."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=_printable
        )
        environment.filters["tojson"] = _tojson
        del environment.filters["random"], environment.globals["lipsum"]
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TemplateFault(f"is no template: {error} (line {getattr(error, 'lineno', 1)})") from None
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateFault(f"reads another file in line {node.lineno}, and a prompt template is one text")
        self.names = frozenset(find_undeclared_variables(tree)) - environment.globals.keys()

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for a row with these values. Raises RowError "template"."""
        try:
            return self._template.render(values)
        except _UnprintableError as error:
            raise RowError("template", f"the prompt template prints {error}") from None
        except Exception as error:  # a template can fail in any way that Python can
            # The library's words may change with its version, and would change the bytes of the row.
            raise RowError("template", f"the prompt template fails on the row ({type(error).__name__})") from None


@lru_cache(maxsize=256)
def compiled(source: str) -> RowTemplate:
    """The template of `source`, made once. Raises TemplateFault."""
    return RowTemplate(source)


class _UnprintableError(Exception):
    """What may not be printed."""


def _printable(value: Any) -> Any:
    if value is None:
        raise _UnprintableError("a null: say what stands in its place, {{ NAME or '' }}")
    if not isinstance(value, str | int | float | StrictUndefined):
        raise _UnprintableError(f"a value of type {type(value).__name__}: use a filter, such as tojson or join")
    return value


def _tojson(value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    """Plain JSON; Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
