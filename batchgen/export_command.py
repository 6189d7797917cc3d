"""The command that writes a run for a trainer."""

from dataclasses import asdict
from pathlib import Path

import click

from batchgen import terminal
from batchgen.commands import Command, emit
from batchgen.exports.export import export_run
from batchgen.exports.shapes import SHAPES
from batchgen.options import AS_JSON, PATH, RUN
from batchgen.places import Place


@click.command(cls=Command)
@RUN
@click.argument("out", type=PATH)
@click.option("--to", type=click.Choice(list(SHAPES)), required=True, help="Whose shape the rows get.")
@click.option("--rewards", type=PATH, metavar="FILE", help="Parquet: row_key, sample_index, reward.")
@click.option("--skip-errors", is_flag=True, help="Leave out all samples of a prompt with a failed one.")
@AS_JSON
def export(run: Place, out: Path, to: str, rewards: Path | None, skip_errors: bool, as_json: bool) -> None:
    """Write RUN to OUT for a trainer of reinforcement learning.

    One Parquet row a sample, under the names that the trainer's own type has: token ids, masks, the logprob of each
    token, why it ended, its group and the digest of the weights. The samples of a prompt are next to each other. Every
    hash is checked first.
    """
    found = export_run(run, out, to, rewards, skip_errors=skip_errors)
    if as_json:
        emit({"out": str(out), **asdict(found)})
        return
    terminal.print_name(out)
    left_out = f", {terminal.number(found.left_out)} left out" if found.left_out else ""
    prompts = terminal.count(found.rows // found.n, "prompt")
    terminal.print_note(f"{terminal.count(found.rows, 'sample')} of {prompts}{left_out}")
