"""The numbers of whole runs: finished or not, in one go or in several, with and without events."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support.fake_jobs import read_rows
from support.report_runs import SELF_TEST, Answer, Page, failed, ok, write_run

from batchgen.errors import EngineError, RunError
from batchgen.io.events import EVENTS
from batchgen.io.manifest import part_name, read_manifest
from batchgen.io.run_folder import RunFolder
from batchgen.records import Completion, Request
from batchgen.report import FILE_NAME, write_report
from batchgen.report.leads import state, verdicts
from batchgen.report.page import render
from batchgen.report.summary import NUM_SAMPLES, Summary, summarise
from batchgen.verify.integrity import verify_run

KEYS = [f"row-{i}" for i in range(24)]


def plain(request: Request) -> Completion:
    return ok(request, [request.seed % 97, request.sample_index], f"answer to {request.row_key}")


def stopping_at(key: str) -> Answer:
    def answer(request: Request) -> Completion:
        if request.row_key == key:
            raise EngineError("the machine is on fire")
        return plain(request)

    return answer


def facts(run: Summary) -> list[tuple[str, str]]:
    return [(fact.kind, fact.text) for fact in verdicts(run)]


def stop(folder: Path, key: str) -> Path:
    with pytest.raises(EngineError):
        write_run(folder, KEYS, stopping_at(key))
    return folder / "run"


def test_a_finished_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, KEYS, plain)
    found = summarise(run)
    manifest = read_manifest(run)
    assert found.finished
    assert (found.root, found.tally, found.planned) == (manifest.root, manifest.counts, 48)
    assert found.probes == manifest.probes >= 2
    assert state(found).text == "finished"
    assert facts(found) == [
        ("ok", "No row failed"),
        ("ok", f"{found.probes} of {found.probes} probes bit-exact"),
        ("ok", "The engine proved itself at its start"),
        ("note", "Hashes are not recomputed here:"),
    ]
    assert found.identity.engine == {"self_test": SELF_TEST}
    assert found.timeline is not None
    assert [stretch.samples for stretch in found.timeline.stretches] == [48]


def test_the_samples_are_spread_evenly(tmp_path: Path) -> None:
    run = write_run(tmp_path, KEYS, plain)
    rows = read_rows(run).to_pylist()
    found = summarise(run, lambda ids: f"{len(ids)} ids")
    assert len(found.samples) == NUM_SAMPLES
    places = [
        rows.index(next(row for row in rows if row["row_hash"] == each.row["row_hash"])) for each in found.samples
    ]
    assert (places[0], places[-1]) == (0, len(rows) - 1)
    steps = {after - before for before, after in pairwise(places)}
    assert steps <= {2, 3}
    assert {each.prompt for each in found.samples} == {"7 ids"}


def test_a_run_that_was_stopped_and_went_on(tmp_path: Path) -> None:
    run = stop(tmp_path, "row-13")
    half = summarise(run)
    assert not half.finished
    assert half.root is None
    assert 0 < half.tally.rows == read_rows(run).num_rows < 48
    assert (state(half).kind, state(half).text) == ("warn", "unfinished")
    assert f"{half.tally.rows} of 48 samples are there" in Page(render(half)).text
    write_run(tmp_path, KEYS, plain)
    whole = summarise(run)
    assert whole.timeline is not None
    first, second = whole.timeline.stretches
    assert (first.end, first.reason, second.end) == ("stop", "the machine is on fire", "finish")
    assert first.samples + second.samples == whole.tally.rows == 48
    text = Page(render(whole)).text
    assert "Process 1 stopped (the machine is on fire) after" in text
    assert "in 2 processes" in text


def test_a_run_of_no_row_yet(tmp_path: Path) -> None:
    run = stop(tmp_path, "row-0")
    found = summarise(run)
    assert (found.tally.rows, found.samples, found.failed, dict(found.errors)) == (0, (), (), {})
    text = Page(render(found)).text
    for wanted in (
        "No row is made yet.",
        "0 of 48 samples are there",
        "There is no answer yet.",
        "has committed a row",
    ):
        assert wanted in text


def test_only_errors(tmp_path: Path) -> None:
    found = summarise(write_run(tmp_path, KEYS, failed))
    assert found.tally.error == 48
    assert facts(found)[0] == ("bad", "48 rows failed:")
    text = Page(render(found)).text
    assert "There is no answer." in text
    assert "Each of 24 prompts has a failed sample." in text


def test_without_events_the_page_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, KEYS, plain)
    (run / EVENTS).unlink()
    found = summarise(run)
    assert found.timeline is None
    text = Page(render(found)).text
    assert "No events tell when these rows were made" in text
    assert "at work" not in text


def test_eight_times_the_same_answer(tmp_path: Path) -> None:
    def same(request: Request) -> Completion:
        return ok(request, [5] if request.row_key == "row-3" else [request.sample_index], request.row_key)

    run = write_run(tmp_path, KEYS, same, sampling={"n": 8})
    found = summarise(run)
    assert ("warn", "1 prompt got the same answer 8 times") in facts(found)
    [least] = found.least_diverse
    assert (least.row_key, least.text, least.distinct, least.most_alike) == ("row-3", "row-3", 1, 8)
    greedy = replace(found, greedy=True)
    assert all(kind != "warn" for kind, _ in facts(greedy)), "greedy samples are the same by right"


def test_a_probe_that_failed_is_told(tmp_path: Path) -> None:
    run = stop(tmp_path, "row-13")
    with RunFolder.open(run) as folder:
        folder.keep_evidence({"row_key": "row-12"})
    with (run / EVENTS).open("a", encoding="utf-8") as file:
        at = "2026-01-01T00:00:00.000+00:00"
        file.write(f'{{"at": "{at}", "event": "probe", "row_key": "row-12", "sample_index": 1, "exact": false}}\n')
    found = summarise(run)
    assert ("bad", "1 probe came out otherwise the second time:") in facts(found)
    assert "row-12 #1: the second time it came out otherwise" in Page(render(found)).text


def test_the_page_is_no_stranger_in_the_run(tmp_path: Path) -> None:
    run = stop(tmp_path, "row-13")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    write_report(run)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in run.iterdir()} == {path.relative_to(run).parts[0] for path in before} | {FILE_NAME}
    write_run(tmp_path, KEYS, plain)
    (run / f".{FILE_NAME}.tmp").write_text("torn")
    RunFolder.open(run).close()
    assert not (run / f".{FILE_NAME}.tmp").exists()
    assert verify_run(run).ok
    assert (run / FILE_NAME).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_another_place_for_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path, KEYS, plain)
    write_report(run, tmp_path / "page.html")
    assert (tmp_path / "page.html").is_file()
    assert not (run / FILE_NAME).exists()
    with pytest.raises(RunError, match="cannot write"):
        write_report(run, tmp_path / "no" / "page.html")


@pytest.mark.parametrize(
    "damage", [lambda run: (run / part_name(2)).unlink(), lambda run: (run / "manifest.json").unlink()]
)
def test_a_damaged_run_has_no_page(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    run = write_run(tmp_path, KEYS, plain)
    damage(run)
    with pytest.raises(RunError):
        write_report(run)
    assert not (run / FILE_NAME).exists()


def test_equal_runs_have_equal_pages_but_for_times(tmp_path: Path) -> None:
    pages = []
    for name in "ab":
        run = write_run(tmp_path / name, KEYS, plain)
        (run / EVENTS).unlink()
        pages.append(render(summarise(run)))
    assert pages[0] == pages[1]
