"""What people read: rows, counts and errors, with nothing in the data taken for an instruction."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from batchgen import terminal
from batchgen.errors import BatchgenError, SpecError
from batchgen.executor.run_book import JobReport
from batchgen.io.manifest import Tally
from batchgen.terminal import job
from batchgen.terminal import rows as row_views

ROW: dict[str, Any] = {
    "row_key": "summarise-07",
    "sample_index": 1,
    "status": "ok",
    "error_code": None,
    "error_message": None,
    "text": "A library moves.",
    "finish_reason": "stop",
    "stop_reason": None,
    "num_prompt_tokens": 1131,
    "num_output_tokens": 57,
    "row_hash": "9f" * 16,
}


def rendered(view: RenderableType, width: int = 80) -> str:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_a_row() -> None:
    lines = [line.rstrip() for line in rendered(row_views.row_view(ROW, "Summarise this.")).splitlines()]
    assert lines[0].startswith("summarise-07 · sample 1 ─")
    assert lines[1:] == [
        "prompt  Summarise this.",
        "answer  A library moves.",
        "ended   stop, 1,131 tokens in, 57 tokens out",
        f"hash    {'9f' * 16}",
        "",
    ]


REPORT = JobReport("9f" * 32, Tally(656, 257, 398, 1, 101_826, 48_603), resumed=0, seconds=211, probes=4)


def test_what_a_run_made(capsys: pytest.CaptureFixture[str]) -> None:
    job.print_report(Path("runs/a"), REPORT)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "run     runs/a",
        "rows    656: 257 stop, 398 length, 1 error",
        "tokens  101,826 in, 48,603 out",
        "probes  4 of 4 bit-exact",
        "made    656 samples in 3:31",
        f"root {'9f' * 32}",
    ]


def test_what_was_taken_of_earlier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sources = ({"path": "../b", "root": "r", "samples": 400}, {"path": "s3://bucket/c", "root": None, "samples": 56})
    job.print_report(Path("runs/a"), replace(REPORT, reused=400, scored=56, sources=sources))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "reused  400 of 656 samples from runs/b, 56 of 656 samples from s3://bucket/c" in lines
    assert "made    200 samples in 3:31, 56 scored" in lines
    job.print_report(Path("runs/a"), replace(REPORT, reused=656, sources=sources[:1]))
    assert "finished already" not in capsys.readouterr().out


def test_how_different_the_answers_are(capsys: pytest.CaptureFixture[str]) -> None:
    job.print_report(Path("runs/a"), REPORT, "7.9 of 8 answers to a prompt differ")
    assert "groups  7.9 of 8 answers to a prompt differ" in capsys.readouterr().out


def test_probes_that_were_none_or_failed_before() -> None:
    assert job.probes(replace(REPORT, probes=0)) == "none"
    failed = job.probes(replace(REPORT, probes=1_300, failed_probes=1))
    assert failed == "1,300 of 1,300 bit-exact; 1 differed and stopped an earlier process: see evidence/ in the run"


def test_the_end_of_a_long_prompt() -> None:
    text = rendered(row_views.row_view(ROW, "beginning " + "word " * 200 + "and the question"))
    assert "beginning" not in text
    assert "… " in text
    assert "and the question" in text


def test_what_a_row_says_of_its_sampling() -> None:
    assert '{"top_k":3}' in rendered(row_views.row_view(ROW | {"sampling": '{"top_k":3}'}, "a"))
    assert "sampling" not in rendered(row_views.row_view(ROW | {"sampling": None}, "a"))


def test_the_cut_falls_between_words() -> None:
    assert row_views.tail("x" * 50 + " one two" * 60).plain.startswith("… two one two ")
    assert row_views.tail("x" * 1000).plain == "… " + "x" * row_views.PROMPT_TAIL


def test_the_samples_of_a_prompt_share_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**ROW, "row_key": key, "sample_index": i, "prompt_token_ids": [1]} for key in "ab" for i in range(3)]
    row_views.print_rows(rows, lambda ids: "Summarise this.")
    shown = capsys.readouterr().out
    assert (shown.count("Summarise this."), shown.count("A library moves.")) == (2, 6)
    row_views.print_rows(rows, None)
    assert "prompt" not in capsys.readouterr().out


def test_an_error_row_and_an_empty_answer() -> None:
    failed = {**ROW, "status": "error", "error_code": "template", "error_message": "no such role", "text": None}
    assert "error  template: no such role" in rendered(row_views.row_view(failed, None))
    assert "answer  (empty)" in rendered(row_views.row_view({**ROW, "text": ""}, None))


def test_a_stop_string_is_shown_as_it_is() -> None:
    assert row_views.ending({**ROW, "stop_reason": "\n\n"}).startswith(r"stop '\n\n', ")


@pytest.mark.parametrize("text", ["[bold]loud[/bold]", "[red", ":smile:", "https://a.example/b"])
def test_no_markup_is_read_from_data(text: str) -> None:
    shown = rendered(row_views.row_view({**ROW, "text": text, "row_key": text}, text))
    assert shown.count(text) == 3
    assert "\x1b" not in shown


def test_control_characters_are_pictures() -> None:
    shown = rendered(
        row_views.row_view({**ROW, "text": "a\x1b[2Jb\x07\r\x9b1mc\n\td", "row_key": "\x1b]0;t\x07"}, "\x08")
    )
    assert not any(char in shown for char in "\x1b\x07\r\x9b\x08")
    assert "a␛[2Jb␇␍\ufffd1mc" in shown
    assert "␛]0;t␇" in shown


def test_the_histogram_keeps_small_counts_visible() -> None:
    lines = job.histogram([(32, 1), (1024, 300)]).plain.splitlines()
    assert lines == ["≤    32  █ 1", f"≤ 1,024  {'█' * 30} 300"]


def test_count() -> None:
    assert [terminal.count(n, "row") for n in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]


def test_size() -> None:
    sizes = [terminal.size(value) for value in (0, 999, 1000, 1_250_000, 3.2e9, 5e12)]
    assert sizes == ["0 B", "999 B", "1.0 kB", "1.2 MB", "3.2 GB", "5.0 TB"]


def test_an_error_is_one_line_and_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    where = "jobs/" + "a" * 120 + ".yaml: sampling.top_p"
    terminal.print_error(SpecError("must be at most 1, got [2]", where=where, hint="1 is off"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {where}: must be at most 1, got [2]\n  1 is off\n"
    terminal.print_error(BatchgenError("plain"))
    assert capsys.readouterr().err == "error: plain\n"


def test_an_error_as_an_object() -> None:
    assert terminal.error_json(SpecError("unknown key", where="a.yaml: sead", hint="did you mean 'seed'?")) == {
        "error": {
            "kind": "SpecError",
            "where": "a.yaml: sead",
            "message": "unknown key",
            "hint": "did you mean 'seed'?",
            "exit_code": 4,
        }
    }


def test_log_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("batchgen", logging.WARNING, "", 0, "%s; its shard is made again", ("torn [x]",), None)
    terminal.LogHandler().handle(record)
    assert capsys.readouterr() == ("", "torn [x]; its shard is made again\n")
