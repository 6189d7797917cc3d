"""Documents whose examples run: the `console` blocks of a Markdown file, and what a shell says to their commands.

A line that begins with "$ " is a command, the lines below it are what it prints (stdout and stderr together). In them
"…" stands for any text within a line, and a line that is "…" alone for any number of lines. A command without lines
below it may print anything. The exit code of each command is part of its block: 0, or what a line `exit code N` says.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"^exit code (\d+)$")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a document and what it should do."""

    text: str
    output: tuple[str, ...]
    exit_code: int


def commands(document: str) -> list[Command]:
    """Every command of the document in order."""
    found: list[Command] = []
    for block in _BLOCK.findall(document):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            text, *lines = part.rstrip("\n").split("\n")
            while text.endswith("\\"):
                text = text[:-1] + lines.pop(0)
            exits = [int(match[1]) for line in lines if (match := _EXIT.match(line))]
            output = tuple(line for line in lines if line.strip() and not _EXIT.match(line))
            found.append(Command(text, output, exits[0] if exits else 0))
    return found


def check(command: Command, folder: Path, environment: dict[str, str]) -> None:
    """Run the command in `folder`; AssertionError, showing what came, unless it does what the document says."""
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    shown = f"$ {command.text}\n{done.stdout}exit code {done.returncode}"
    assert done.returncode == command.exit_code, f"should exit with {command.exit_code}:\n{shown}"
    if command.output:
        assert matches(command.output, done.stdout), f"should print\n{chr(10).join(command.output)}\nand not\n{shown}"


def matches(wanted: tuple[str, ...], printed: str) -> bool:
    """Does all of `printed`, blank lines and ends of lines aside, read as `wanted`?"""
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines() if line.strip())
    patterns = (r"(?:.*\n)*" if line.strip() == "…" else _line(line) for line in wanted)
    return re.fullmatch("".join(patterns), lines) is not None


def _line(line: str) -> str:
    """Runs of blanks are as wide as they like."""
    words = (re.escape(word).replace("…", ".*") for word in line.split())
    return r"\s*" + r"\s+".join(words) + "\n"
