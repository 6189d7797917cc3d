"""What the commands print for people; here what all of it is made of: the two streams, plain text, names and values.

Text that comes from data is shown as it is: no markup is read from it, and a control character is a picture of itself.
"""

import logging
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchgen.errors import BatchgenError

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


def print_name(name: object) -> None:
    """The name of something that was made, alone on a line of stdout, for other programs to take."""
    OUT.print(plain(name), soft_wrap=True)


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
