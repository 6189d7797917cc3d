"""The input of a job: which files or runs, which of their rows, how a prompt is made of one, and what names it."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from batchgen.records import Problem
from batchgen.row_sampling import OWN, why_not
from batchgen.row_template import TemplateFault, compiled
from batchgen.spec_section import Count, Section, Sha256, Text, refuse


def _check_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise PydanticCustomError("unique", "must not name a column twice")
    return values


def _check_template(source: str) -> str:
    try:
        compiled(source)
    except TemplateFault as fault:
        raise PydanticCustomError("template", "{text}", {"text": str(fault)}) from None
    return source


Template = Annotated[Text, AfterValidator(_check_template)]


def _check_own(columns: dict[str, str]) -> dict[str, str]:
    refuse(*(Problem(name, why) for name in columns if (why := why_not(name))))
    return columns


_NAMES = {"propertyNames": {"enum": list(OWN)}}
OwnSampling = Annotated[
    dict[str, Text], Field(min_length=1, json_schema_extra=_NAMES), AfterValidator(_check_own)
]  # parameter -> column


class Columns(Section):
    """Where a row's prompt is: one of prompt, messages and prompt_token_ids."""

    prompt: Text | None = None
    """A text column, taken as it is."""
    messages: Text | None = None
    """A column of chat messages, rendered by the chat template: list<struct<role, content, ...>>."""
    tools: Text | None = None
    """A column of tool definitions for the chat template: list<struct>."""
    prompt_token_ids: Text | None = None
    """A column of token ids: list<integer>."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(name is not None for name in (self.prompt, self.messages, self.prompt_token_ids)) != 1:
            refuse(Problem("", "must name exactly one of prompt, messages and prompt_token_ids"))
        if self.tools is not None and self.messages is None:
            refuse(Problem("tools", "goes with messages only"))
        return self


class MessageTemplate(Section):
    """One message of a chat."""

    role: Text
    """Taken as it is."""
    content: Template
    """A Jinja template over the row's columns."""


class SampleSpec(Section):
    """A draw of rows without repeats; they stay in input order."""

    rows: Count
    """How many."""
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)] = 0
    """Another seed, another draw. It has nothing to do with the seed of the job."""


class CrossSpec(Section):
    """A second table. Each row of the input is taken once with each row of it, in its order."""

    path: Text
    """A Parquet file, relative to the job file."""
    key: Text
    """A column of text or integers, unique in the table: a row's key becomes KEY/KEY_OF_THE_SECOND."""
    prefix: str = ""
    """Put before the names of its columns, for templates and passthrough."""


class InputSpec(Section):
    """One or many Parquet files of the same columns, or the rows of a finished run."""

    path: Text | None = None
    """A Parquet file or a glob of them, or an URL of these such as s3://BUCKET/KEY; relative to the job file. Digits
    sort as numbers, part-2 before part-10."""
    run: Text | None = None
    """In place of path: the folder of a finished run, relative to the job file. Its samples are the rows."""
    root: Sha256 | None = None
    """What the root of that run must be; null takes the one it has, and inputs_digest keeps it."""
    columns: Columns | None = None
    """The columns that hold the prompt; or else prompt_template, or messages_template."""
    prompt_template: Template | None = None
    """A Jinja template of the prompt, over the row's columns."""
    messages_template: Annotated[tuple[MessageTemplate, ...], Field(min_length=1)] | None = None
    """A chat whose contents are Jinja templates over the row's columns."""
    sampling: OwnSampling | None = None
    """Parameter: column. What a row says there takes the place of the job's own; a null leaves it."""
    cross: CrossSpec | None = None
    """A second table whose columns a template sees too."""
    where: Text | None = None
    """A SQL condition on the file's columns (DuckDB's dialect); rows where it is not true are left out."""
    sample: SampleSpec | None = None
    """So many of the selected rows, drawn; of the pairs, where there is a second table."""
    limit: Count | None = None
    """The first so many of the selected rows; with a second table, of the rows before they are crossed."""
    passthrough: Annotated[tuple[Text, ...], AfterValidator(_check_unique)] = ()
    """Columns that are copied to the output."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        ways = [self.columns, self.prompt_template, self.messages_template]
        templates = "prompt_template", "messages_template"
        if self.path is None and self.run is None:
            refuse(Problem("path", "is required"))
        if self.path is not None and self.run is not None:
            refuse(Problem("run", "takes the place of path: name one of the two"))
        if self.root is not None and self.run is None:
            refuse(Problem("root", "goes with run only"))
        if not any(way is not None for way in ways):
            refuse(Problem("columns", "is required, or one of prompt_template and messages_template"))
        if sum(way is not None for way in ways) > 1:
            named = next(name for name in reversed(templates) if getattr(self, name) is not None)
            message = "is one of three ways to a prompt: name one of columns, prompt_template and messages_template"
            refuse(Problem(named, message))
        if self.cross is not None and self.columns is not None:
            refuse(Problem("cross", "goes with a template only: nothing else reads the second table"))
        if self.sample is not None and self.limit is not None and self.cross is None:
            refuse(Problem("limit", "and sample are two ways to take fewer rows: name one"))
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keys that came later stand in the resolved spec only where they are used: fingerprints stay as they were."""
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if value is not None or name in ("where", "limit")}


class RowKeySpec(Section):
    """What names a row: a column, or a key derived from the row. Seeds hang on it."""

    column: Text | None = None
    """A text or integer column."""
    derive: Literal["content_hash", "file_and_row", "sample"] | None = None
    """content_hash: of the prompt; equal prompts are duplicates. file_and_row: FILE:ROW, rows counted from 0.
    sample: ROW_KEY/SAMPLE_INDEX, for rows that batchgen made."""
    on_duplicate: Literal["error", "suffix"] = "error"
    """suffix: the second row with the key k is named k#2, the third k#3, in input order."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.column is None) == (self.derive is None):
            refuse(Problem("", "must hold exactly one of column and derive"))
        return self
