"""What the commands print for people: rows of a run, tables of counts, errors.

Text that comes from data is shown as it is: no markup is read from it, and a control character is a picture of itself.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from batchgen.errors import BatchgenError
from batchgen.executor.local import JobReport
from batchgen.preflight import Preflight
from batchgen.progress import clock
from batchgen.spec import JobSpec
from batchgen.verify.integrity import Verdict

PROMPT_TAIL = 400  # characters
_WIDTH = 100  # of text that is read, whatever the terminal's
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

# stdout is for what was asked for, stderr for all else. Numbers and paths get no colours of their own.
OUT = Console(highlight=False)
ERR = Console(stderr=True, highlight=False)


class LogHandler(logging.Handler):
    """What the package logs, as plain lines on stderr that leave a bar in peace."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else ""
        ERR.print(plain(self.format(record), style), soft_wrap=True)


def plain(text: object, style: str = "") -> Text:
    """Text that cannot move the cursor, colour the screen or ring the bell."""
    return Text(str(text).translate(_VISIBLE), style)


def print_error(error: BatchgenError) -> None:
    """error: file: field: message, and below it what to do."""
    place = f"{error.where}: " if error.where else ""
    ERR.print(Text.assemble(("error: ", "bold red"), plain(place + error.message)), soft_wrap=True)
    if error.hint:
        ERR.print(plain(f"  {error.hint}"), soft_wrap=True)


def print_note(text: str) -> None:
    """A line that is no error."""
    ERR.print(plain(text), soft_wrap=True)


def error_json(error: BatchgenError) -> dict[str, Any]:
    """The same as an object."""
    fields = {"kind": type(error).__name__, "where": error.where, "message": error.message, "hint": error.hint}
    return {"error": {**fields, "exit_code": error.exit_code}}


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values in two columns; a pair whose value is None is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", max_width=_WIDTH)
    for name, value in pairs:
        if value is not None:
            table.add_row(name, value if isinstance(value, Text) else plain(value))
    return table


def number(value: int) -> str:
    """12,345"""
    return f"{value:,}"


def count(value: int, noun: str) -> str:
    """1 row, 2,000 rows"""
    return f"{number(value)} {noun}" + "s" * (value != 1)


def size(num_bytes: float) -> str:
    """1.2 MB"""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


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


def print_report(out: Path, report: JobReport) -> None:
    """What a finished run holds; the last line is its root."""
    counts, made = report.counts, report.counts.rows - report.resumed
    if not made:
        OUT.print(plain(f"{out} was finished already; every hash holds"), soft_wrap=True)
    ends = f"{number(counts.stop)} stop, {number(counts.length)} length, {number(counts.error)} error"
    here = f"{count(made, 'sample')} in {clock(report.seconds)}"
    if made and report.resumed:
        here += f", {number(report.resumed)} were there already"
    OUT.print(
        facts(
            [
                ("run", out),
                ("rows", f"{number(counts.rows)}: {ends}"),
                ("tokens", f"{number(counts.prompt_tokens)} in, {number(counts.output_tokens)} out"),
                ("made", here if made else None),
            ]
        )
    )
    OUT.print(f"root {report.root}", soft_wrap=True)


def print_preflight(spec: JobSpec, found: Preflight) -> None:
    """What a job would meet."""
    tokens, n = found.prompt_tokens, spec.sampling.n
    rows, files = number(found.num_rows), count(found.num_files, "file")
    spread = f"{tokens.minimum} shortest, {tokens.median} median, {tokens.maximum} longest"
    OUT.print(
        facts(
            [
                ("job", spec.name),
                ("fingerprint", spec.fingerprint()),
                ("model", spec.model.path),
                ("rows", f"{rows} in {files}; with n = {n}, {count(found.num_samples, 'sample')}"),
                ("prompts", f"{count(tokens.total, 'token')}: {spread}"),
                ("", histogram(tokens.histogram) if tokens.histogram else None),
                ("repeated", f"{count(found.duplicate_prompts, 'prompt')} equal to an earlier one"),
                ("look-alikes", look_alikes(found, spec)),
                ("output", f"at most {count(found.max_output_tokens, 'token')}, about {size(found.max_output_bytes)}"),
                ("error rows", number(found.num_error_rows) if found.faults else "none"),
            ]
        )
    )
    for fault in found.faults:
        line = f"  {number(fault.count)} {fault.code}; the first is {fault.first}: {fault.message}"
        OUT.print(plain(line, "red"), soft_wrap=True)


def look_alikes(found: Preflight, spec: JobSpec) -> str:
    """What becomes of text that looks like a control token."""
    if not found.first_control_token:
        return "no row holds text that looks like a control token"
    becomes = {"text": "read as text", "allow": "read as control tokens", "error": "error rows"}
    policy = becomes[spec.prompts.special_tokens_in_content]
    return f"{count(found.control_token_rows, 'row')}, {policy}; the first is {found.first_control_token}"


def histogram(buckets: Sequence[tuple[int, int]]) -> Text:
    """One bar for each bucket (largest length, count), the longest 30 characters."""
    most = max(count for _, count in buckets)
    width = len(number(buckets[-1][0]))
    lines = (f"≤ {number(top):>{width}}  {'█' * max(1, 30 * count // most)} {number(count)}" for top, count in buckets)
    return Text("\n".join(lines))


def print_verdict(run: Path, verdict: Verdict) -> None:
    """ok and the root, or each finding on its line."""
    for finding in verdict.findings:
        OUT.print(plain(finding), soft_wrap=True)
    if verdict.ok:
        OUT.print(plain(f"ok: {run}, {count(verdict.rows, 'row')}, every hash holds"), soft_wrap=True)
        OUT.print(f"root {verdict.root}", soft_wrap=True)
        return
    counts = ", ".join(f"{number(count)} {kind}" for kind, count in sorted(verdict.counts.items()))
    OUT.print(Text.assemble(("not ok", "bold red"), f": {run}, {count(verdict.rows, 'row')}, {counts}"), soft_wrap=True)
