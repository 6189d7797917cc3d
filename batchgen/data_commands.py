"""The commands that take rows from and to other forms: selections, OpenAI's batch files, cards."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from batchgen import terminal
from batchgen.commands import Command, emit, leave
from batchgen.errors import EXIT_ERROR_ROWS, EXIT_OK
from batchgen.io.manifest import read_manifest
from batchgen.io.row_rules import job_of
from batchgen.options import AS_JSON, PATH, PLACE, RUN
from batchgen.places import Place, join
from batchgen.progress import display

NUMERICS = click.Choice(["portable/1", "native-amx/1", "native-sm90/1"])


@click.command(cls=Command)
@RUN
@click.option("--where", metavar="SQL", help="A condition on the columns of the run, as in a job file.")
@click.option("--dedup", multiple=True, metavar="COLUMN", help="Of rows with equal values, the first; repeatable.")
@click.option("--out", type=PATH, metavar="FILE", required=True, help="The Parquet file.")
@AS_JSON
def select(run: Place, where: str | None, dedup: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Write some rows of RUN to one Parquet file.

    Rows keep their order, columns and hashes; the file's metadata says which run they are of, its root, and how they
    were chosen. Every hash is checked first.
    """
    from batchgen.pipelines.select import select as select_rows

    found = select_rows(run, out, where, dedup)
    if as_json:
        emit({"out": str(out), **asdict(found)})
        return
    left = f"{terminal.number(found.unselected)} not selected, {terminal.number(found.repeated)} repeated"
    terminal.OUT.print(terminal.plain(f"{out}: {terminal.count(found.rows, 'row')}; {left}"), soft_wrap=True)
    terminal.OUT.print(f"root {found.root}", soft_wrap=True)


@click.command("import-openai", cls=Command)
@click.argument("batch", type=PLACE)
@click.option(
    "--job", type=PATH, metavar="FILE", required=True, help="The job file to write; its input goes beside it."
)
@click.option("--model", metavar="MODEL", required=True, help="As in a job file: a folder, a .gguf file, hf: or pypi:.")
@click.option("--sha256", metavar="HEX", help="Of the model file; needed with pypi:.")
@click.option("--numerics", type=NUMERICS, default="portable/1", show_default=True, help="The profile of the job.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="For requests that do not say it.")
@click.option(
    "--split", is_flag=True, help="Write several jobs where lines differ in n, seed or logprobs: FILE-1, FILE-2, ..."
)
@click.option("--errors", type=PATH, metavar="FILE", help="Make error lines of requests that cannot be asked.")
@AS_JSON
def import_openai(
    batch: Place,
    job: Path,
    model: str,
    sha256: str | None,
    numerics: str,
    max_tokens: int | None,
    split: bool,
    errors: Path | None,
    as_json: bool,
) -> None:
    """Make a job of BATCH, an OpenAI batch file.

    Reads lines of custom_id, method, url and body for chat completions and completions. A custom_id becomes a row key.
    What cannot be asked here is refused, line by line.
    """
    from batchgen.pipelines.openai_import import Asked, import_batch
    from batchgen.spec import load_spec

    found = import_batch(batch, job, Asked(model, sha256, numerics, max_tokens), split=split, errors=errors)
    for made in found.jobs:
        load_spec(Path(made))
    if as_json:
        emit(asdict(found))
    else:
        for made in found.jobs:
            terminal.print_name(made)
        terminal.print_note(f"{terminal.count(found.requests, 'request')}, {terminal.number(found.refused)} refused")
    leave(EXIT_ERROR_ROWS if found.refused else EXIT_OK)


@click.command("export-openai", cls=Command)
@RUN
@click.argument("out", type=PATH)
@click.option("--errors", type=PATH, metavar="FILE", help="The error file.  [default: beside OUT]")
@AS_JSON
def export_openai(run: Place, out: Path, errors: Path | None, as_json: bool) -> None:
    """Write RUN as the output file of an OpenAI batch.

    A line for each input row: to OUT with all its samples as choices, or to the error file. Exits with 3 if there are
    error lines.
    """
    from batchgen.pipelines.openai_export import export_batch

    errors = errors or out.with_name(f"{out.stem}-errors{out.suffix}")
    found = export_batch(run, out, errors, decoder(run))
    if as_json:
        emit({"out": str(out), "error_file": str(errors), **asdict(found)})
    else:
        terminal.OUT.print(terminal.plain(f"{out}: {terminal.count(found.answers, 'line')}"), soft_wrap=True)
        terminal.OUT.print(terminal.plain(f"{errors}: {terminal.count(found.errors, 'line')}"), soft_wrap=True)
    leave(EXIT_ERROR_ROWS if found.errors else EXIT_OK)


@click.command(cls=Command)
@RUN
@click.option("--license", metavar="SPDX", default="other", show_default=True, help="Of the rows, such as apache-2.0.")
@AS_JSON
def card(run: Place, license: str, as_json: bool) -> None:
    """Describe RUN as a data set.

    Writes README.md, with the front matter that hubs of data sets read, and croissant.json into its folder: counts,
    tokens, sampling, where the rows come from, columns, fingerprints. Equal runs give equal files.
    """
    from batchgen.pipelines.card import write_card

    readme, croissant = write_card(run, license)
    if as_json:
        emit({"card": str(readme), "croissant": str(croissant)})
    else:
        terminal.print_name(readme)
        terminal.print_name(croissant)


def decoder(run: Place) -> Callable[[Sequence[int]], str] | None:
    """Turns token ids of a run with logprobs into text; None for a run without. Raises ModelError."""
    from batchgen.loader import load_model

    manifest = read_manifest(run)
    spec = job_of(manifest)
    if spec.sampling.logprobs is None:
        return None
    job_dir = join(run, str(manifest.run_config.get("job_dir") or "."))
    with display(terminal.ERR) as shown:
        return load_model(spec, job_dir, shown.fetched).tokenizer.decode


COMMANDS = (select, card, import_openai, export_openai)
