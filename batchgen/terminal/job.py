"""A job before and after it runs: what it would meet, what it made."""

from collections.abc import Sequence
from os.path import normpath
from pathlib import Path

from rich.text import Text

from batchgen.executor.run_book import JobReport
from batchgen.places import Place, join
from batchgen.preflight import Preflight
from batchgen.progress import clock
from batchgen.spec import JobSpec
from batchgen.terminal import OUT, count, facts, number, plain, size


def print_report(out: Place, report: JobReport, groups: str | None = None) -> None:
    """What a finished run holds; the last line is its root. `groups`: how different the answers to a prompt are."""
    counts, made = report.counts, report.counts.rows - report.resumed - report.reused - report.scored
    if report.resumed == counts.rows:
        OUT.print(plain(f"{out} was finished already; every hash holds"), soft_wrap=True)
    ends = f"{number(counts.stop)} stop, {number(counts.length)} length, {number(counts.error)} error"
    here = f"{count(made, 'sample')} in {clock(report.seconds)}"
    if report.scored:
        here += f", {number(report.scored)} scored"
    if made and report.resumed:
        here += f", {number(report.resumed)} were there already"
    OUT.print(
        facts(
            [
                ("run", out),
                ("rows", f"{number(counts.rows)}: {ends}"),
                ("tokens", f"{number(counts.prompt_tokens)} in, {number(counts.output_tokens)} out"),
                ("groups", groups),
                ("reused", reused(out, report)),
                ("probes", probes(report)),
                ("made", here if made or report.scored else None),
            ]
        )
    )
    OUT.print(f"root {report.root}", soft_wrap=True)


def reused(out: Place, report: JobReport) -> str | None:
    """How many samples are of which earlier runs; None where no run was named, or none could be used."""
    runs = [(join(out, each["path"]), each["samples"]) for each in report.sources]
    whole = count(report.counts.rows, "sample")
    parts = [f"{number(n)} of {whole} from {normpath(run) if isinstance(run, Path) else run}" for run, n in runs]
    return ", ".join(parts) or None


def probes(report: JobReport) -> str:
    """How many samples were made twice, over all processes, and that all were equal: a finished run has no others."""
    text = f"{number(report.probes)} of {number(report.probes)} bit-exact" if report.probes else "none"
    if report.failed_probes:
        text += f"; {number(report.failed_probes)} differed and stopped an earlier process: see evidence/ in the run"
    return text


def print_preflight(spec: JobSpec, found: Preflight) -> None:
    """What a job would meet."""
    tokens, n = found.prompt_tokens, spec.sampling.n
    rows, files = number(found.num_rows), count(found.num_files, "file")
    spread = f"{tokens.minimum} shortest, {tokens.median} median, {tokens.maximum} longest"
    OUT.print(
        facts(
            [
                ("job", spec.name),
                ("fingerprint", spec.fingerprint()),
                ("model", spec.model.path),
                ("rows", f"{rows} in {files}; with n = {n}, {count(found.num_samples, 'sample')}"),
                ("prompts", f"{count(tokens.total, 'token')}: {spread}"),
                ("", histogram(tokens.histogram) if tokens.histogram else None),
                ("rows say", ", ".join(sorted(spec.own_sampling)) or None),
                ("repeated", f"{count(found.duplicate_prompts, 'prompt')} equal to an earlier one"),
                ("look-alikes", look_alikes(found, spec)),
                ("output", f"at most {count(found.max_output_tokens, 'token')}, about {size(found.max_output_bytes)}"),
                ("error rows", number(found.num_error_rows) if found.faults else "none"),
            ]
        )
    )
    for fault in found.faults:
        line = f"  {number(fault.count)} {fault.code}; the first is {fault.first}: {fault.message}"
        OUT.print(plain(line, "red"), soft_wrap=True)


def look_alikes(found: Preflight, spec: JobSpec) -> str:
    """What becomes of text that looks like a control token."""
    if not found.first_control_token:
        return "no row holds text that looks like a control token"
    becomes = {"text": "read as text", "allow": "read as control tokens", "error": "error rows"}
    policy = becomes[spec.prompts.special_tokens_in_content]
    return f"{count(found.control_token_rows, 'row')}, {policy}; the first is {found.first_control_token}"


def histogram(buckets: Sequence[tuple[int, int]]) -> Text:
    """One bar for each bucket (largest length, count), the longest 30 characters."""
    most = max(count for _, count in buckets)
    width = len(number(buckets[-1][0]))
    lines = (f"≤ {number(top):>{width}}  {'█' * max(1, 30 * count // most)} {number(count)}" for top, count in buckets)
    return Text("\n".join(lines))
