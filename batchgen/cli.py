"""The commands: parse, call, print, exit code."""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from fractions import Fraction
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from batchgen import terminal
from batchgen.commands import Commands, emit, leave
from batchgen.data_commands import COMMANDS as DATA_COMMANDS
from batchgen.diff_command import diff
from batchgen.errors import EXIT_ERROR_ROWS, EXIT_OK, Interrupted, ModelError, SpecError, VerifyError
from batchgen.eval_command import evaluate
from batchgen.executor.run_config import DeviceName, RunConfig
from batchgen.export_command import export
from batchgen.io.first_rows import first_rows
from batchgen.io.hashing import parse_root
from batchgen.io.manifest import Manifest, manifest_schema, read_manifest
from batchgen.io.schema import rows_schema
from batchgen.options import (
    ANOTHER,
    AS_JSON,
    DEFAULTS,
    DEVICES,
    GUARD,
    JOB,
    JOB_DIR,
    NATURAL,
    PLACE,
    RANKS,
    RAY,
    REPLICAS,
    RUN,
    WATCHDOG,
    count,
    of,
    share,
)
from batchgen.places import Place, join
from batchgen.progress import display
from batchgen.spec import JobSpec, job_schema, load_spec
from batchgen.status import read_status
from batchgen.terminal.help import EXAMPLES
from batchgen.terminal.rows import print_rows
from batchgen.terminal.status import LINE_SECONDS, follow, print_status, watch_status
from batchgen.terminal.verdict import print_verdict
from batchgen.verify.choice import all_rows, drawn_rows, named_rows, parse_size
from batchgen.verify.integrity import verify_run

SCHEMAS = {"job": job_schema, "rows": rows_schema, "manifest": manifest_schema}


@click.group(cls=Commands, epilog=EXAMPLES, context_settings={"max_content_width": 100})
@click.version_option(package_name="batchgen")
def cli() -> None:
    """Offline batch generation with language models, the same bytes every time.

    A job file says which model answers which prompts, and how tokens are drawn. A run is a folder of Parquet files in
    which every row carries a hash, with one root over all of them: equal jobs give equal roots.
    """
    log = logging.getLogger("batchgen")
    log.setLevel(logging.INFO)
    log.handlers = [terminal.LogHandler()]


@cli.command()
@JOB
@click.option("--out", type=PLACE, metavar="DIR", help="The run folder, or its URL.  [default: runs/NAME]")
@click.option(
    "--reuse",
    type=PLACE,
    multiple=True,
    metavar="RUN",
    help="Take the samples that an earlier run has of this job, or of one like it; may be given repeatedly.",
)
@click.option("--rows-per-shard", **ANOTHER, help="Of the input, for a file of rows.  [default: as fits their number]")
@click.option("--max-num-seqs", **ANOTHER, help="Samples that are worked on at once.  [default: 64, on a GPU 256]")
@click.option("--max-num-batched-tokens", **ANOTHER, help="Tokens of one step.  [default: 256, on a GPU 8192]")
@click.option(
    "--device",
    type=DEVICES,
    default=DEFAULTS["device"],
    show_default=True,
    help="auto: an NVIDIA GPU where there is one that the job's numerics run on.",
)
@click.option(
    "--memory-fraction",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="F",
    default=DEFAULTS["memory_fraction"],
    show_default=True,
    help="Of a GPU's memory that is free beside the weights: what the KV cache may take.",
)
@count("--threads", help="Threads that compute on a CPU; by default one a core.")
@RANKS
@click.option("--redundant-experts", type=NATURAL, metavar="N", default=0, help="Experts of a layer held twice.")
@click.option("--eplb-interval", type=NATURAL, metavar="STEPS", default=0, help="Let experts move that often.")
@click.option(
    "--probe",
    type=share,
    metavar="SHARE",
    default=DEFAULTS["probe"],
    show_default=True,
    help="Samples that are made twice and compared bit for bit, such as 2%; at least two, unless it is 0.",
)
@REPLICAS
@RAY
@GUARD
@WATCHDOG
@AS_JSON
def run(
    job: Place, out: Place | None, as_json: bool, device: DeviceName, ray: str | None, guard: bool, **given: Any
) -> None:
    """Make every row of JOB that is missing.

    A run that was stopped goes on from what is complete; a finished one is verified and left alone. No option changes
    a bit of any row. The last line printed is the root of the run.
    """
    from batchgen.executor.start import ON_GPU, fitting_limits  # loads torch
    from batchgen.job import Cluster, run_job
    from batchgen.report.groups import diversity_of, in_a_line
    from batchgen.terminal.job import print_report

    spec = load_spec(job)
    chosen = {name: value for name, value in given.items() if value is not None}
    out = out or Path("runs") / spec.name
    if ray or chosen["replicas"] > 1:
        config = RunConfig(out, executor="ray", device=device, guard=True, **chosen)
    else:
        config = RunConfig(out, device=device, guard=guard, **(fitting_limits(device, spec.numerics) | chosen))
    where = Cluster(ray, {name: value for name, value in ON_GPU.items() if name not in chosen})
    with display(terminal.ERR) as shown:
        report = run_job(job, config, where, on_fetch=shown.fetched, on_progress=shown.made)
    # A folder on disk is read again at little cost, an object store is not.
    groups = diversity_of(config.out, read_manifest(config.out)) if isinstance(config.out, Path) else None
    if as_json:
        diversity = groups and {"n": groups.n, "distinct": groups.distinct, "left_out": groups.left_out}
        emit({"out": str(config.out), **asdict(report), "diversity": diversity, "exit_code": report.exit_code})
    else:
        print_report(config.out, report, in_a_line(groups) if groups else None)
    leave(report.exit_code)


@cli.command()
@JOB
@AS_JSON
def plan(job: Place, as_json: bool) -> None:
    """Read the input of JOB and say what to expect.

    Builds every prompt: counts tokens, finds empty, overlong and repeated prompts and text that looks like a control
    token, and estimates the output. Loads no weights. Exits with 3 if some row cannot be answered.
    """
    from batchgen.loader import bytes_of_experts, load_job, naming, prompt_builder
    from batchgen.preflight import preflight
    from batchgen.terminal.job import print_preflight

    with display(terminal.ERR) as shown:
        loaded, model = load_job(job, shown.fetched)
        with naming(job):
            prompts = prompt_builder(loaded.spec, model)
            found = preflight(loaded.spec, loaded.inputs, prompts, bytes_of_experts(model), loaded.own_params)
    if as_json:
        emit(found.to_dict())
    else:
        print_preflight(loaded.spec, found)
    leave(EXIT_ERROR_ROWS if found.faults else EXIT_OK)


@cli.command()
@RUN
@click.option("--root", type=of(parse_root), metavar="HEX", help="What the root must be, noted when the run was made.")
@AS_JSON
def verify(run: Place, root: str | None, as_json: bool) -> None:
    """Check every hash of RUN.

    Computes all hashes again from the files, and names each row that is missing, doubled, changed or foreign, and each
    file that is torn. Needs the folder alone: neither model nor input. Whoever can write to the folder can make rows,
    hashes and root fit each other: only --root, with a root kept elsewhere, or replay shows that.
    """
    with display(terminal.ERR, after=1.0) as shown:
        verdict = verify_run(run, root=root, on_progress=shown.checked)
    if as_json:
        emit({"ok": verdict.ok, **asdict(verdict)})
    else:
        print_verdict(run, verdict)
    leave(EXIT_OK if verdict.ok else VerifyError.exit_code)


cli.add_command(diff)


@cli.command()
@RUN
@click.option(
    "--sample", type=of(parse_size), metavar="SIZE", help="Draw that many, 20 or 5%.  [default: 1%, 16 at least]"
)
@click.option("--rows", "keys", multiple=True, metavar="KEY", help="The samples of this row; may be given repeatedly.")
@click.option("--sample-index", type=NATURAL, metavar="I", help="With --rows: only the sample I of each.")
@click.option("--all", "everything", is_flag=True, help="All samples.")
@click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Another draw, and another order.")
@click.option("--from-input", is_flag=True, help="Build the prompts again too, from the input of the job.")
@click.option("--max-num-seqs", **ANOTHER, help="Samples that are worked on at once.  [default: not as recorded]")
@click.option("--max-num-batched-tokens", **ANOTHER, help="Tokens of a step.  [default: not as recorded]")
@click.option("--device", type=DEVICES, help="Where to compute.  [default: auto]")
@click.option("--threads", **ANOTHER, help="Threads that compute on a CPU; by default one a core.")
@RANKS
@click.option("--prefix-cache/--no-prefix-cache", default=None, help="Share beginnings.  [default: not as recorded]")
@JOB_DIR
@click.option("--limit", type=NATURAL, metavar="N", default=10, show_default=True, help="Bad rows to show.")
@AS_JSON
def replay(
    run: Place,
    sample: int | Fraction | None,
    keys: tuple[str, ...],
    sample_index: int | None,
    everything: bool,
    seed: int,
    from_input: bool,
    job_dir: Place | None,
    limit: int,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Make rows of RUN again and compare every bit.

    Needs the run and its model. By default the rows are a draw, and made with other limits, in another order and with
    the prefix cache the other way round: none of it may matter. Of a row that differs it says where, and for a token
    what the sampler compared. Exits with 8 if a row differs.
    """
    if (sample is not None) + bool(keys) + everything > 1 or (sample_index is not None and not keys):
        raise click.UsageError("one of --sample, --rows and --all; --sample-index goes with --rows")
    from batchgen.terminal.replay import print_configs, print_replay  # loads torch
    from batchgen.verify.ledger import Ledger
    from batchgen.verify.prompts import InputPrompts, StoredPrompts
    from batchgen.verify.replay import check_files, other_config, replay_rows

    with display(terminal.ERR) as shown:
        ledger = Ledger.open(run, shown.fetched, job_dir)
        check_files(run, shown.checked)
        manifest, rows = ledger.manifest, drawn_rows(ledger.manifest, sample, seed)
        if everything:
            rows = all_rows(manifest, seed)
        elif keys:
            rows = named_rows(ledger, keys, sample_index, seed)
        prompts = InputPrompts(ledger) if from_input else StoredPrompts()
        config = other_config(run, manifest.run_config, **chosen)
        engine = ledger.start_engine(config)
    if not as_json:
        print_configs(manifest, config, engine.about)
    with display(terminal.ERR) as shown:
        found = replay_rows(ledger, engine, rows, prompts, limit, shown.made)
    exit_code = VerifyError.exit_code if found.bad else Interrupted.exit_code if found.interrupted else EXIT_OK
    if as_json:
        how = {"recorded": manifest.run_config, "config": config.recorded(), "engine": engine.about}
        whole = {"ok": found.ok, "root": manifest.root, "fingerprint": manifest.fingerprint, **how, **asdict(found)}
        emit(whole | {"exit_code": exit_code})
    else:
        print_replay(manifest, found)
    leave(exit_code)


@cli.command()
@RUN
@click.argument("row_key")
@click.option("--sample", type=NATURAL, metavar="I", default=0, show_default=True, help="Which sample.")
@click.option("--against", type=PLACE, metavar="RUN_B", help="Another run that has the row.")
@JOB_DIR
@AS_JSON
def explain(run: Place, row_key: str, sample: int, against: Place | None, job_dir: Place | None, as_json: bool) -> None:
    """Say where two versions of a row part: at which token, layer and op.

    Makes the row of RUN again as its manifest says, beside the rows it was made with, and once more as in RUN_B, or
    without one alone and with other limits. Compares what every op gave at every position. Exits with 8 if anything
    differs.
    """
    from batchgen.terminal.explain import print_explanation  # loads torch
    from batchgen.verify.explain import explain as explain_row

    with display(terminal.ERR) as shown:
        found = explain_row(run, row_key, sample, against, shown.fetched, job_dir)
    if as_json:
        emit(asdict(found))
    else:
        print_explanation(found)
    leave(VerifyError.exit_code if found.differs else EXIT_OK)


@cli.command()
@RUN
@click.option("--out", type=PLACE, metavar="FILE", help="The page.  [default: RUN/report.html]")
@click.option("--against", type=PLACE, metavar="RUN_B", help="Compare with the rows of RUN_B.")
@AS_JSON
def report(run: Place, out: Place | None, against: Place | None, as_json: bool) -> None:
    """Draw a picture of RUN: one HTML file.

    Counts, lengths, throughput, how different the samples of a prompt are, probes, slow and failed rows, a few rows to
    read, and all fingerprints; with --against, what diff finds. The page loads nothing. Hashes are not recomputed: that
    is what verify does. Prints the name of the page; with --json its numbers.
    """
    from batchgen.report import FILE_NAME, write_report

    out = out or run / FILE_NAME
    summary = write_report(run, out, decoder(run, read_manifest(run)), against)
    if as_json:
        emit({"out": str(out), **asdict(summary)})
    else:
        terminal.print_name(out)


@cli.command()
@RUN
@click.option("--watch", is_flag=True, help="Go on until it is finished; without a terminal, line by line.")
@AS_JSON
def status(run: Place, watch: bool, as_json: bool) -> None:
    """Say how far RUN is.

    Samples, tokens and failures, the rate of each replica and the time that is left: from the folder alone, while
    another process works on it or when none does. Counts are of complete shards. No hash is checked.
    """
    try:
        if as_json and watch:
            follow(run, LINE_SECONDS, lambda found: emit(asdict(found)))
        elif as_json:
            emit(asdict(read_status(run)))
        elif watch:
            watch_status(run, terminal.OUT)
        else:
            print_status(run, terminal.OUT)
    except KeyboardInterrupt:  # the way to leave it: no error
        leave(Interrupted.exit_code)


@cli.command()
@RUN
@click.option("--rows", type=click.IntRange(min=1), metavar="N", default=4, show_default=True, help="How many samples.")
@AS_JSON
def show(run: Place, rows: int, as_json: bool) -> None:
    """Show the first rows of RUN.

    Of each sample: the end of its prompt, the answer, why it ended, how long it is, and its hash.
    """
    manifest = read_manifest(run)
    found = first_rows(run, manifest, rows)
    if not manifest.finished:
        there, planned = manifest.counts.rows, manifest.plan.num_samples
        terminal.print_note(f"unfinished: {terminal.number(there)} of {terminal.count(planned, 'sample')} are there")
    if as_json:
        emit({"rows": found})
        return
    print_rows(found, decoder(run, manifest))


@cli.command()
@click.argument("name", type=click.Choice(list(SCHEMAS)), default="job")
def schema(name: str) -> None:
    """Print the JSON Schema of job files, of rows, or of manifests."""
    click.echo(json.dumps(SCHEMAS[name](), indent=2))


def decoder(run: Place, manifest: Manifest) -> Callable[[Sequence[int]], str] | None:
    """Turns the run's prompt ids into text, if its model is still there."""
    from batchgen.loader import load_model

    job_dir = join(run, str(manifest.run_config.get("job_dir") or "."))
    try:
        with display(terminal.ERR) as shown:
            return load_model(JobSpec.from_resolved(manifest.spec), job_dir, shown.fetched).tokenizer.decode
    except (ModelError, SpecError) as error:
        terminal.print_note(f"prompts are not shown, for the tokenizer is not at hand: {error.where} {error.message}")
        return None


for command in (*DATA_COMMANDS, export, evaluate):
    cli.add_command(command)


def main() -> None:
    """The program `batchgen`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that is not UTF-8 shows escapes, and ends no job
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="batchgen")
