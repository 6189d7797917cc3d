"""The verdict over a run's files."""

from pathlib import Path

from rich.text import Text

from batchgen.terminal import OUT, count, number, plain
from batchgen.verify.integrity import Verdict


def print_verdict(run: Path, verdict: Verdict) -> None:
    """ok and the root, or each finding on its line."""
    for finding in verdict.findings:
        OUT.print(plain(finding), soft_wrap=True)
    if verdict.ok:
        OUT.print(plain(f"ok: {run}, {count(verdict.rows, 'row')}, every hash holds"), soft_wrap=True)
        OUT.print(f"root {verdict.root}", soft_wrap=True)
        return
    counts = ", ".join(f"{number(count)} {kind}" for kind, count in sorted(verdict.counts.items()))
    OUT.print(Text.assemble(("not ok", "bold red"), f": {run}, {count(verdict.rows, 'row')}, {counts}"), soft_wrap=True)
