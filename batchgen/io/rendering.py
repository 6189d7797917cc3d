"""Prompts that templates make of a row's columns: what is read for them, and how they look."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchgen.errors import RowError
from batchgen.io.columns import Undecodable, cells, check_json_type
from batchgen.row_template import compiled
from batchgen.spec_inputs import InputSpec


@dataclass(frozen=True, slots=True)
class Unrendered:
    """A prompt that its template could not make of a row; `value` is what the row holds."""

    error: RowError
    value: Any


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The template of an input: one text, or messages of (role, content). It holds sources, and so it travels."""

    prompt: str | None
    messages: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, entry: InputSpec) -> "PromptTemplate | None":
        """That of `entry`, if it has one."""
        if entry.prompt_template is None and entry.messages_template is None:
            return None
        return cls(entry.prompt_template, tuple((m.role, m.content) for m in entry.messages_template or ()))

    @property
    def role(self) -> str:
        """What it makes: prompt or messages."""
        return "messages" if self.prompt is None else "prompt"

    @property
    def names(self) -> list[str]:
        """The columns that it reads, sorted."""
        sources = [content for _, content in self.messages] if self.prompt is None else [self.prompt]
        return sorted(set().union(*(compiled(source).names for source in sources)))

    def check_types(self, schema: pa.Schema, where: str) -> None:
        """Raise InputError for a column without a JSON form: its text would depend on libraries."""
        for name in self.names:
            check_json_type("template", schema.field(name).type, f"{where}: {name}")

    def prompts(self, batch: pa.RecordBatch) -> list[Any]:
        """Of each row the prompt or the messages; Undecodable or Unrendered where there is none."""
        names = self.names
        columns = [cells(batch.column(name)) for name in names]
        rows = zip(*columns, strict=True) if columns else ((),) * batch.num_rows
        return [self._prompt(dict(zip(names, row, strict=True))) for row in rows]

    def _prompt(self, values: dict[str, Any]) -> Any:
        if any(isinstance(value, Undecodable) for value in values.values()):
            plain = {name: v.value if isinstance(v, Undecodable) else v for name, v in values.items()}
            return Undecodable(plain)
        try:
            if self.prompt is not None:
                return compiled(self.prompt).render(values)
            return [{"role": role, "content": compiled(text).render(values)} for role, text in self.messages]
        except RowError as error:
            return Unrendered(error, values)
