"""The command that scores rows: parse, call, print, exit code."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from batchgen import terminal
from batchgen.commands import Command, emit, leave
from batchgen.errors import EXIT_ERROR_ROWS, EXIT_OK
from batchgen.executor.run_config import RunConfig
from batchgen.options import ANOTHER, AS_JSON, DEVICES, JOB_DIR, NATURAL, PLACE
from batchgen.places import Place
from batchgen.progress import display


@click.command("eval", cls=Command)
@click.argument("run", metavar="RUN|JOB", type=PLACE)
@click.option("--out", type=PLACE, metavar="DIR", help="With a job file: the run folder.  [default: runs/NAME]")
@click.option("--evals", type=PLACE, metavar="JOB", help="Take the evals of this job file, not of the run's own.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this evaluation; may be given repeatedly.")
@click.option("--against", type=PLACE, metavar="RUN_B", help="Show what is right in one of both runs alone.")
@click.option("--limit", type=NATURAL, metavar="N", default=10, show_default=True, help="Flips to show.")
@click.option("--device", type=DEVICES, default="auto", show_default=True, help="Where to compute.")
@click.option("--max-num-seqs", **ANOTHER, help="Samples that are worked on at once.")
@click.option("--threads", **ANOTHER, help="Threads that compute on a CPU; by default one a core.")
@JOB_DIR
@AS_JSON
def evaluate(
    run: Place,
    out: Place | None,
    evals: Place | None,
    only: tuple[str, ...],
    against: Place | None,
    limit: int,
    job_dir: Place | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Score the rows of RUN as the evals of its job say.

    Of a job file, makes the missing rows first. Writes evals/NAME.parquet, an item for each sample, and evals/NAME.json
    into the run folder. Intervals are at 95%. No option changes a digit. Exits with 3 if items have no score.
    """
    from batchgen.evals.evaluate import ScoredRun, score_texts
    from batchgen.evals.flips import flips_between
    from batchgen.terminal.evals import print_evaluations, print_flips

    chosen = {name: value for name, value in given.items() if value is not None}
    if run.is_file():
        run = _made(run, out, chosen)
    elif out is not None:
        raise click.UsageError("--out goes with a job file")
    scored = ScoredRun.open(run, evals=evals, only=only, job_dir=job_dir)
    found = [score_texts(scored, spec) for spec in scored.specs if spec.scorer != "choice"]
    if any(spec.scorer == "choice" for spec in scored.specs):
        found += _choices(scored, job_dir, chosen)
    order = {spec.name: at for at, spec in enumerate(scored.specs)}
    found.sort(key=lambda each: order[each.name])
    flips = [] if against is None else flips_between(run, against, [each.name for each in found])
    failed = sum(each.summary.failed for each in found)
    if as_json:
        about = {"run": str(run), "root": scored.manifest.root}
        evaluations = [asdict(each) for each in found]
        emit(about | {"evaluations": evaluations} | ({"flips": [asdict(each) for each in flips]} if against else {}))
    else:
        print_evaluations(run, scored.manifest.root, found)
        for each in flips:
            print_flips(each, limit)
    leave(EXIT_ERROR_ROWS if failed else EXIT_OK)


def _made(job: Place, out: Place | None, chosen: dict[str, Any]) -> Place:
    """The run of a job file, whose missing rows are made."""
    from batchgen.executor.start import fitting_limits  # loads torch
    from batchgen.job import run_job
    from batchgen.spec import load_spec

    spec = load_spec(job)
    run = out or Path("runs") / spec.name
    config = RunConfig(run, **(fitting_limits(chosen["device"], spec.numerics) | chosen))
    with display(terminal.ERR) as shown:
        run_job(job, config, on_fetch=shown.fetched, on_progress=shown.made)
    return run


def _choices(scored: Any, job_dir: Place | None, chosen: dict[str, Any]) -> list[Any]:
    """The evaluations for which the model is asked."""
    from batchgen.evals.choice import score_choices  # loads torch
    from batchgen.verify.ledger import Ledger

    with display(terminal.ERR) as shown:
        ledger = Ledger.open(scored.run, shown.fetched, job_dir)
        engine = ledger.start_engine(replace(ledger.config, **chosen))
        specs = [spec for spec in scored.specs if spec.scorer == "choice"]
        return [score_choices(scored, spec, engine, ledger.model.tokenizer) for spec in specs]


COMMANDS = (evaluate,)
