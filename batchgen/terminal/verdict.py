"""The verdict over a run's files: what is wrong with which rows, and what mends it."""

from collections import Counter
from collections.abc import Iterator
from shlex import quote

from rich.table import Table
from rich.text import Text

from batchgen.io.finding import Finding, Kind
from batchgen.places import Place
from batchgen.terminal import OUT, count, number, plain
from batchgen.verify.integrity import Verdict

_FINDINGS = 20  # lines of each list

_MADE_AGAIN: tuple[Kind, ...] = ("torn", "missing", "changed", "foreign", "moved", "doubled")


def print_verdict(run: Place, verdict: Verdict) -> None:
    """ok and the root; or the findings, how they are mended, and how many there are of each kind."""
    if verdict.ok:
        OUT.print(plain(f"ok: {run}, {count(verdict.rows, 'row')}, every hash holds"), soft_wrap=True)
        OUT.print(f"root {verdict.root}", soft_wrap=True)
        return
    total = sum(verdict.counts.values())
    if total > _FINDINGS:
        OUT.print(overview(verdict))
        OUT.print()
    shown = examples(verdict)
    for finding in shown:
        OUT.print(plain(finding), soft_wrap=True)
    if total > len(shown):
        listed = "all of them" if total == len(verdict.findings) else f"the first {number(len(verdict.findings))}"
        OUT.print(plain(f"and {number(total - len(shown))} more; --json lists {listed}", "dim"), soft_wrap=True)
    OUT.print()
    for step in next_steps(run, verdict):
        OUT.print(plain(step))
    counts = ", ".join(f"{number(count)} {kind}" for kind, count in sorted(verdict.counts.items()))
    OUT.print(Text.assemble(("not ok", "bold red"), f": {run}, {count(verdict.rows, 'row')}, {counts}"), soft_wrap=True)


def overview(verdict: Verdict) -> Table:
    """Kind, file, how many; of the findings that are kept."""
    counts = Counter((finding.kind, finding.file) for finding in verdict.findings)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for (kind, file), size in list(counts.items())[:_FINDINGS]:
        table.add_row(kind, plain(file), number(size))
    if len(counts) > _FINDINGS:
        rest = list(counts.values())[_FINDINGS:]
        table.add_row("", Text(f"and {count(len(rest), 'line')} more", "dim"), Text(number(sum(rest)), "dim"))
    return table


def examples(verdict: Verdict) -> list[Finding]:
    """As many findings as are shown, of each kind and file the first few, in order."""
    groups = {(finding.kind, finding.file) for finding in verdict.findings}
    many, of_each = max(1, _FINDINGS // max(1, len(groups))), Counter[tuple[Kind, str]]()
    chosen = []
    for finding in verdict.findings:
        group = finding.kind, finding.file
        of_each[group] += 1
        if of_each[group] <= many:
            chosen.append(finding)
    return chosen[:_FINDINGS] if len(verdict.findings) > _FINDINGS else list(verdict.findings)


def next_steps(run: Place, verdict: Verdict) -> Iterator[str]:
    """What mends the run, one line for each kind of damage that there is."""
    command = f"`batchgen run JOB --out {quote(str(run))}`"
    if any(is_job_file(finding) for finding in verdict.findings):
        yield "Put back the job.yaml that the run was started with: its SHA-256 is in the manifest. No row hangs on it."
    kinds = {finding.kind for finding in verdict.findings if not is_job_file(finding)}
    if kinds.intersection(_MADE_AGAIN):
        yield f"{command} makes the shards again whose rows do not hold; it keeps their files under hidden names."
    elif "unfinished" in kinds:
        yield f"{command} goes on where it stopped."
    if "stray" in kinds:
        yield "Move the stray files out of rows/: whoever reads all of it takes them for rows of the run."
    if "manifest" in kinds:
        yield (
            "Something has changed the manifest, or rows and manifest together: restore the run from a copy, or make "
            f"it again in another folder. `batchgen replay {quote(str(run))}` tells whether its rows are the model's."
        )


def is_job_file(finding: Finding) -> bool:
    """About the copy of the job, which no row hangs on."""
    return finding.file == "job.yaml"
