"""What the commands take: arguments and options that several of them share, and the types of options."""

from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from batchgen.executor.run_config import MAX_RANKS, MAX_REPLICAS, RunConfig
from batchgen.places import place


def of(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an option that `parse` reads: what its ValueError says, the user is told."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


def on_disk(text: str) -> Path:
    """A path of this machine. Raises ValueError for an URL."""
    found = place(text)
    if not isinstance(found, Path):
        raise ValueError(f"{text!r} must be a file of this machine")
    return found


PLACE, PATH, NATURAL = of(place), of(on_disk), click.IntRange(min=0)
JOB = click.argument("job", type=PLACE)
RUN = click.argument("run", type=PLACE)
JOB_DIR = click.option("--job-dir", type=PLACE, metavar="DIR", help="Where paths of the job begin, if moved.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object; all else goes to stderr.")
ANOTHER: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "N"}
DEVICES = click.Choice(["auto", "cpu", "cuda"])
RANKS = click.option(
    "--expert-parallel-size",
    type=click.IntRange(1, MAX_RANKS),
    metavar="N",
    help="Ranks that share the experts of a mixture: N processes, on GPUs each on its own.  [default: 1]",
)
REPLICAS = click.option(
    "--replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    metavar="N",
    default=1,
    show_default=True,
    help="Engines that share the work, on a Ray cluster. They may come and go.",
)
RAY = click.option(
    "--ray",
    metavar="ADDRESS",
    help="The Ray cluster: HOST:PORT or auto.  [default: with several replicas one on this machine, for this job]",
)
GUARD = click.option(
    "--guard",
    is_flag=True,
    help="Compute in a process of its own, which may die: only the row that kills it each time becomes an error row. "
    "Replicas do so always.",
)
WATCHDOG = click.option(
    "--watchdog",
    "watchdog_seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="With --guard, or several ranks: without a step for so long an engine is taken for dead.  [default: 300]",
)
DEFAULTS = {field.name: field.default for field in fields(RunConfig)}


def count(option: str, *, help: str) -> Callable[[Any], Any]:
    """An option of RunConfig that is a number from 1 up."""
    default = DEFAULTS[option.removeprefix("--").replace("-", "_")]
    return click.option(
        option, type=click.IntRange(min=1), metavar="N", default=default, show_default=default is not None, help=help
    )


def share(text: str | float) -> float:
    """A part of a whole, as an option: 0.005 or 0.5%."""
    digits = str(text)
    try:
        part = Fraction(digits.removesuffix("%")) / (100 if digits.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(f"{digits!r} is not a share, such as 0.005 or 0.5%") from None
    if not 0 <= part <= 1:
        raise click.BadParameter(f"{digits} is not from 0 to 1")
    return float(part)
