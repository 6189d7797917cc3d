"""Rows of a run, set for reading."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from batchgen.terminal import OUT, count, facts, plain

PROMPT_TAIL = 400  # characters


def row_view(row: Mapping[str, Any], prompt: str | None) -> RenderableType:
    """One sample: where it comes from, the end of its prompt, its answer or its failure, its hash."""
    failed = row["status"] == "error"
    if failed:
        result = "error", plain(f"{row['error_code']}: {row['error_message']}", "red")
    else:
        result = "answer", plain(row["text"]) if row["text"] else Text("(empty)", "dim")
    title = Text.assemble(plain(row["row_key"], "bold"), f" · sample {row['sample_index']}")
    table = facts(
        [
            ("prompt", None if prompt is None else tail(prompt)),
            ("thought", None if row.get("reasoning") is None else tail(row["reasoning"])),
            ("sampling", None if row.get("sampling") is None else tail(str(row["sampling"]))),
            result,
            ("ended", None if failed else ending(row)),
            ("hash", row["row_hash"]),
        ]
    )
    return Group(Rule(title, align="left", style="dim"), Padding(table, (0, 0, 1, 0)))


def tail(prompt: str) -> Text:
    """The last words of a prompt, with a mark where the rest is left out."""
    if len(prompt) <= PROMPT_TAIL:
        return plain(prompt.strip(), "italic")
    words = prompt[-PROMPT_TAIL:].split(maxsplit=1)[-1]
    return Text.assemble(("… ", "dim"), plain(words.strip(), "italic"))


def ending(row: Mapping[str, Any]) -> str:
    """stop "###", 131 tokens in, 57 out"""
    reason = f"{row['finish_reason']} {row['stop_reason']!r}" if row["stop_reason"] else str(row["finish_reason"])
    return f"{reason}, {count(row['num_prompt_tokens'], 'token')} in, {count(row['num_output_tokens'], 'token')} out"


def print_rows(rows: Sequence[Mapping[str, Any]], decode: Callable[[Sequence[int]], str] | None) -> None:
    """Each row, set for reading; a prompt once for all its samples, and not at all without `decode`."""
    above = None
    for row in rows:
        ids, key = row["prompt_token_ids"], row["row_key"]
        OUT.print(row_view(row, decode(ids) if decode and ids is not None and key != above else None))
        above = key
