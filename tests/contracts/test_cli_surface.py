"""The commands and their options, as a literal list, so that growth shows in review."""

import click

from batchgen.cli import cli

SURFACE = {
    "card": ["RUN", "--license", "--json"],
    "eval": [
        "RUN|JOB",
        "--out",
        "--evals",
        "--only",
        "--against",
        "--limit",
        "--device",
        "--max-num-seqs",
        "--threads",
        "--job-dir",
        "--json",
    ],
    "export": ["RUN", "OUT", "--to", "--rewards", "--skip-errors", "--json"],
    "export-openai": ["RUN", "OUT", "--errors", "--json"],
    "import-openai": [
        "BATCH",
        "--job",
        "--model",
        "--sha256",
        "--numerics",
        "--max-tokens",
        "--split",
        "--errors",
        "--json",
    ],
    "select": ["RUN", "--where", "--dedup", "--out", "--json"],
    "explain": ["RUN", "ROW_KEY", "--sample", "--against", "--job-dir", "--json"],
    "diff": ["A", "B", "--limit", "--out", "--json"],
    "plan": ["JOB", "--json"],
    "replay": [
        "RUN",
        "--sample",
        "--rows",
        "--sample-index",
        "--all",
        "--seed",
        "--from-input",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--device",
        "--threads",
        "--expert-parallel-size",
        "--prefix-cache",
        "--job-dir",
        "--limit",
        "--json",
    ],
    "report": ["RUN", "--out", "--against", "--json"],
    "run": [
        "JOB",
        "--out",
        "--reuse",
        "--rows-per-shard",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--device",
        "--memory-fraction",
        "--threads",
        "--expert-parallel-size",
        "--redundant-experts",
        "--eplb-interval",
        "--probe",
        "--replicas",
        "--ray",
        "--guard",
        "--watchdog",
        "--json",
    ],
    "schema": ["[job|rows|manifest]"],
    "show": ["RUN", "--rows", "--json"],
    "status": ["RUN", "--watch", "--json"],
    "verify": ["RUN", "--root", "--json"],
}


def surface(group: click.Group) -> dict[str, list[str]]:
    """Command -> its arguments and its options under their longest names."""
    return {
        name: [
            max(param.opts, key=len) if isinstance(param, click.Option) else param.make_metavar(click.Context(command))
            for param in command.params
        ]
        for name, command in sorted(group.commands.items())
    }


def test_the_commands_and_options_are_these() -> None:
    assert surface(cli) == SURFACE
    assert [option for param in cli.params for option in param.opts] == ["--version"]


def test_a_new_option_would_show() -> None:
    grown = click.Group(commands={**cli.commands, "verify": click.Command("verify", params=[click.Option(["--fast"])])})
    assert surface(grown) != SURFACE


def test_everything_has_a_help_text() -> None:
    for command in cli.commands.values():
        assert command.help, command.name
        for param in command.params:
            assert not isinstance(param, click.Option) or param.help, f"{command.name} {param.name}"
