"""The command that compares two runs: parse, call, print, exit code."""

from dataclasses import asdict
from pathlib import Path

import click

from batchgen.commands import Command, emit, leave
from batchgen.errors import EXIT_OK, VerifyError
from batchgen.options import AS_JSON, NATURAL, PATH, PLACE
from batchgen.places import Place


@click.command(cls=Command)
@click.argument("a", type=PLACE)
@click.argument("b", type=PLACE)
@click.option("--limit", type=NATURAL, metavar="N", default=5, show_default=True, help="How many examples.")
@click.option("--out", type=PATH, metavar="FILE", help="All rows that differ, as Parquet.")
@AS_JSON
def diff(a: Place, b: Place, limit: int, out: Path | None, as_json: bool) -> None:
    """Say in which rows runs A and B differ, and why.

    Rows are paired by row key and sample, and compared bit for bit; the causes are those that the two manifests can
    prove. Needs the two folders alone, and checks every hash. Of evaluations that both runs hold it says which items
    are right in one alone. Exits with 8 if anything differs.

    A and B may also be two samples_*.jsonl of the lm-evaluation-harness, or folders of them: then it says which items
    flipped, and the first response that differs.
    """
    from batchgen.evals.flips import flips_between
    from batchgen.evals.samples import diff_samples
    from batchgen.terminal.diff import print_diff
    from batchgen.terminal.evals import print_flips
    from batchgen.terminal.samples import print_samples
    from batchgen.verify.diff import diff_runs

    samples = diff_samples(a, b)
    if samples:
        if out:
            raise click.UsageError("--out is for two runs of batchgen")
        if as_json:
            emit({"identical": samples.identical, **asdict(samples)})
        else:
            print_samples(samples, limit)
        leave(EXIT_OK if samples.identical else VerifyError.exit_code)
    found = diff_runs(a, b, examples=limit, out=out)
    flips = flips_between(a, b)
    if as_json:
        scored = {"flips": [asdict(each) for each in flips]} if flips else {}
        emit({"identical": found.identical, **asdict(found), **scored})
    else:
        for each in flips:
            print_flips(each, limit)
        print_diff(found)
    leave(EXIT_OK if found.identical else VerifyError.exit_code)
