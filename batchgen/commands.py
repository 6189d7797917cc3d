"""What every command is: one that ends an error as a message and an exit code, and answers in text or in JSON."""

from typing import Any

import click

from batchgen import terminal
from batchgen.errors import BatchgenError, Interrupted
from batchgen.terminal.as_json import json_text


class Command(click.Command):
    """A command that ends a BatchgenError as a message and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            error: BatchgenError = Interrupted("stopped", hint="no file was being written")
        except BatchgenError as caught:
            error = caught
        if ctx.params.get("as_json"):
            emit(terminal.error_json(error))
        terminal.print_error(error)
        return ctx.exit(error.exit_code)


class Commands(click.Group):
    """The commands in the order in which one uses them."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def emit(value: object) -> None:
    """One JSON object on one line of stdout."""
    click.echo(json_text(value))


def leave(exit_code: int) -> None:
    """End the command with this exit code."""
    click.get_current_context().exit(exit_code)
