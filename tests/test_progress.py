"""Progress: rates that do not flatter, a bar on a terminal, lines elsewhere."""

import io
import time

import pytest
from rich.console import Console

from batchgen.executor.base import Progress
from batchgen.executor.members import ClusterProgress
from batchgen.progress import BarDisplay, LineDisplay, check_text, clock, display, fetch_text, job_text


def progress(done: int, resumed: int, tokens: int, seconds: float, errors: int = 0) -> Progress:
    return Progress(
        samples=656,
        done=done,
        resumed=resumed,
        errors=errors,
        output_tokens=tokens,
        started=time.perf_counter() - seconds,
    )


@pytest.mark.parametrize("done", [0, 63])
def test_before_it_means_something_there_is_no_rate(done: int) -> None:
    assert job_text(progress(done, 0, 10, 5.0)) == f"{done}/656, 0:05"


def test_rate_and_time_left() -> None:
    assert job_text(progress(156, 0, 15_000, 100.0)) == "156/656, 1:40, 150 tok/s, 5:21 left"


def test_a_resumed_run_is_judged_by_what_this_process_made() -> None:
    assert job_text(progress(556, 456, 15_000, 100.0)) == "556/656, 1:40, 150 tok/s, 1:40 left"


def test_errors_show() -> None:
    assert job_text(progress(156, 0, 15_000, 100.0, errors=3)).startswith("156/656, 3 errors, ")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (545, "9:05"), (3599.7, "1:00:00"), (7745, "2:09:05")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_bytes() -> None:
    assert fetch_text(12_000_000, 94_400_000) == "12/94 MB"
    assert fetch_text(12_000_000, None) == "12 MB"


def test_lines_come_at_intervals_also_when_nothing_is_new() -> None:
    out = io.StringIO()
    with display(Console(file=out), seconds=0.02) as shown:
        assert isinstance(shown, LineDisplay)
        shown.fetched(1_000_000, 2_000_000)
        time.sleep(0.1)
        shown.fetched(2_000_000, 2_000_000)
        time.sleep(0.1)
        shown.made(progress(10, 0, 100, 10.0))
        time.sleep(0.1)
    lines = out.getvalue().splitlines()
    assert lines.count("model 1/2 MB") >= 2
    assert lines.count("starting") >= 2, "weights are mapped and packed once they are here"
    assert lines[-1] == "samples 10/656, 0:10"
    time.sleep(0.1)
    assert out.getvalue().splitlines() == lines, "nothing is said after the end"


def test_a_short_job_says_nothing() -> None:
    out = io.StringIO()
    with display(Console(file=out)) as shown:
        shown.made(progress(656, 0, 100, 1.0))
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    with display(Console(file=out, force_terminal=True, width=80)) as shown:
        assert isinstance(shown, BarDisplay)
        shown.fetched(1_000_000, 2_000_000)
        shown.fetched(2_000_000, 2_000_000)
        shown.made(progress(156, 0, 15_000, 100.0))
    assert "156/656, 1:40, 150 tok/s, 5:21 left" in out.getvalue()


def test_replicas() -> None:
    now = ClusterProgress(samples=656, done=0, resumed=0, starting=3)
    assert job_text(now).endswith(", 0 replicas, 3 starting")
    now.replicas, now.starting, now.done = {"r0": 50.2, "r1": 47.0, "r3": 48.9}, 0, 156
    assert job_text(now).endswith(" left, 3 replicas at 47-50 tok/s")
    now.replicas, now.starting, now.lost, now.twins = {"r0": 50.2}, 1, 2, 4
    assert job_text(now).endswith(" left, 1 replica at 50 tok/s, 1 starting, 2 lost, 4 twins equal")


def test_rows_that_are_verified() -> None:
    assert check_text(0, 1_000_000, 0.5) == "0/1,000,000, 0:00"
    assert check_text(250_000, 1_000_000, 2.0) == "250,000/1,000,000, 0:02, 125,000 rows/s, 0:06 left"


def test_what_is_quick_shows_no_bar() -> None:
    out = io.StringIO()
    with display(Console(file=out, force_terminal=True, width=80), after=60.0) as shown:
        shown.checked(10, 20)
        shown.checked(20, 20)
    assert out.getvalue() == ""


def test_a_bar_comes_up_once_it_takes_longer() -> None:
    out = io.StringIO()
    with display(Console(file=out, force_terminal=True, width=80), after=0.05) as shown:
        shown.checked(5, 20)
        assert out.getvalue() == ""
        time.sleep(0.06)
        shown.checked(10, 20)
        shown.checked(15, 20)
    assert "15/20, 0:00, " in out.getvalue()


def test_elsewhere_verify_writes_lines() -> None:
    out = io.StringIO()
    with display(Console(file=out), seconds=0.02, after=1.0) as shown:
        shown.checked(10, 20)
        time.sleep(0.1)
    assert out.getvalue().startswith(("starting\n", "rows 10/20, 0:00, "))
    assert "rows 10/20, 0:00, " in out.getvalue()


def test_an_error_passes_through() -> None:
    with pytest.raises(RuntimeError, match="boom"), display(Console(file=io.StringIO())):
        raise RuntimeError("boom")
