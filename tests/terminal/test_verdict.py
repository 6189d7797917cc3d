"""The verdict as people read it: short however much is wrong, and never without what to do."""

from pathlib import Path

import pytest

from batchgen.io.finding import Finding, Kind
from batchgen.terminal.verdict import examples, next_steps, print_verdict
from batchgen.verify.integrity import Verdict

RUN = Path("runs/my run")


def verdict(*findings: Finding, more: int = 0) -> Verdict:
    counts: dict[Kind, int] = {}
    for finding in findings:
        counts[finding.kind] = counts.get(finding.kind, 0) + 1
    if more:
        counts["missing"] += more
    return Verdict(1000, None, findings, counts)


def missing(count: int, file: str = "rows/part-00001.parquet") -> list[Finding]:
    return [Finding("missing", file, "is not in its file", f"row-{row}", 0) for row in range(count)]


def lines(capsys: pytest.CaptureFixture[str], found: Verdict) -> list[str]:
    print_verdict(RUN, found)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_sound_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, Verdict(1000, "9f" * 32, (), {})) == [
        "ok: runs/my run, 1,000 rows, every hash holds",
        f"root {'9f' * 32}",
    ]


def test_a_few_findings_stand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(capsys, verdict(*missing(2)))
    assert shown[:3] == [
        "missing: rows/part-00001.parquet row 'row-0' sample 0: is not in its file",
        "missing: rows/part-00001.parquet row 'row-1' sample 0: is not in its file",
        "",
    ]
    assert shown[-1] == "not ok: runs/my run, 1,000 rows, 2 missing"


def test_many_findings_are_counted_first(capsys: pytest.CaptureFixture[str]) -> None:
    torn = Finding("torn", "rows/part-00009.parquet", "there is no such file")
    shown = lines(capsys, verdict(*missing(500), torn))
    assert shown[:3] == [
        "missing  rows/part-00001.parquet  500",
        "torn     rows/part-00009.parquet    1",
        "",
    ]
    assert shown[3:13] == [str(finding) for finding in missing(10)]
    assert shown[13:15] == [str(torn), "and 490 more; --json lists all of them"]
    assert len(shown) < 25


def test_very_many_findings_in_very_many_files(capsys: pytest.CaptureFixture[str]) -> None:
    found = [finding for file in range(100) for finding in missing(100, f"rows/part-{file:05}.parquet")]
    shown = lines(capsys, verdict(*found, more=5000))
    assert shown[20].split() == ["and", "80", "lines", "more", "8,000"]
    assert "and 14,980 more; --json lists the first 10,000" in shown
    assert len(shown) < 60
    assert shown[-1].endswith("15,000 missing")


def test_examples_keep_their_order_and_are_of_every_file() -> None:
    found = [*missing(50, "a"), *missing(50, "b")]
    assert examples(verdict(*found)) == [*found[:10], *found[50:60]]
    assert examples(verdict(*found[:20])) == found[:20]


@pytest.mark.parametrize(
    ("kind", "file", "command"),
    [
        ("torn", "rows/part-00000.parquet", "`batchgen run JOB --out 'runs/my run'` makes the shards again"),
        ("missing", "rows/part-00000.parquet", "makes the shards again"),
        ("changed", "rows/part-00000.parquet", "makes the shards again"),
        ("moved", "rows/part-00000.parquet", "makes the shards again"),
        ("doubled", "rows/part-00000.parquet", "makes the shards again"),
        ("foreign", "rows/part-00000.parquet", "makes the shards again"),
        ("unfinished", "manifest.json", "`batchgen run JOB --out 'runs/my run'` goes on where it stopped"),
        ("stray", "rows/x", "Move the stray files out of rows/"),
        ("manifest", "manifest.json", "`batchgen replay 'runs/my run'` tells"),
        ("changed", "job.yaml", "Put back the job.yaml"),
    ],
)
def test_every_kind_of_finding_has_a_next_step(kind: Kind, file: str, command: str) -> None:
    [step] = next_steps(RUN, verdict(Finding(kind, file, "is wrong")))
    assert command in step


def test_markup_in_a_row_key_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    [first, *_] = lines(capsys, verdict(Finding("missing", "rows/x", "gone", "[red]\x1b[31m", 0)))
    assert "[red]" in first
    assert "\x1b" not in first
