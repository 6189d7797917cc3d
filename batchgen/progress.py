"""How far a job is, on stderr: a bar on a terminal, elsewhere a plain line every ten seconds."""

from collections.abc import Callable
from threading import Event, Thread
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from batchgen.executor.base import Progress
from batchgen.executor.members import ClusterProgress

LINE_SECONDS = 10.0
SETTLED = 64  # samples that must have ended before a rate means something


class Display(Protocol):
    """A context in which a job reports; what it shows is gone, or complete, when the context ends."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def fetched(self, done: int, total: int | None) -> None:
        """Bytes of the model that have arrived, and in all where that is known."""

    def made(self, progress: Progress) -> None:
        """Samples of the job that are done."""

    def checked(self, done: int, total: int) -> None:
        """Rows of a run that are verified."""


def display(console: Console, seconds: float = LINE_SECONDS, *, after: float = 0.0) -> Display:
    """The display that fits the console. A bar comes up `after` seconds, so that what is quick does not flicker."""
    return BarDisplay(console, after) if console.is_terminal else LineDisplay(console.out, seconds)


class BarDisplay:
    """A bar that is drawn anew twice a second and leaves nothing behind."""

    def __init__(self, console: Console, after: float = 0.0) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(None), _Note(Column(no_wrap=True)))
        self._bars = Bars(*columns, console=console, refresh_per_second=2, transient=True, expand=True)
        self._task = self._bars.add_task("starting", total=None, note=str)
        self._started, self._after, self._is_up = perf_counter(), after, False

    def __enter__(self) -> Self:
        self._come_up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def fetched(self, done: int, total: int | None) -> None:
        if done == total:
            self._bars.reset(self._task, description="starting", total=None, note=str)
        else:
            self._show("model", done, total, lambda: fetch_text(done, total))

    def made(self, progress: Progress) -> None:
        self._show("samples", progress.done, progress.samples, lambda: job_text(progress))

    def checked(self, done: int, total: int) -> None:
        self._show("rows", done, total, lambda: check_text(done, total, perf_counter() - self._started))

    def _come_up(self) -> None:
        if not self._is_up and perf_counter() - self._started >= self._after:
            self._bars.start()
            self._is_up = True

    def _show(self, what: str, done: int, total: int | None, note: Callable[[], str]) -> None:
        self._come_up()
        self._bars.update(self._task, description=what, completed=done, total=total, note=note)


class _Note(ProgressColumn):
    """A text that is asked for at each drawing, so that clocks go on."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["note"]())


class LineDisplay:
    """The latest state as a line, at even intervals, also while nothing new is reported."""

    def __init__(self, write: Callable[[str], None], seconds: float) -> None:
        self._write, self._seconds = write, seconds
        self._text: Callable[[], str] = lambda: "starting"
        self._over = Event()
        self._thread = Thread(target=self._tell, daemon=True)
        self._started = perf_counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def fetched(self, done: int, total: int | None) -> None:
        self._text = lambda: "starting" if done == total else f"model {fetch_text(done, total)}"

    def made(self, progress: Progress) -> None:
        self._text = lambda: f"samples {job_text(progress)}"

    def checked(self, done: int, total: int) -> None:
        self._text = lambda: f"rows {check_text(done, total, perf_counter() - self._started)}"

    def _tell(self) -> None:
        while not self._over.wait(self._seconds):
            self._write(self._text())


def fetch_text(done: int, total: int | None) -> str:
    """12/94 MB"""
    return f"{done / 1e6:.0f}/{total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"


def job_text(progress: Progress) -> str:
    """120/656, 1:52, 145 tok/s, 8:20 left. Rates count what this process made, so a resumed run is not flattered."""
    made, seconds = progress.done - progress.resumed - progress.reused, progress.seconds
    parts = [f"{progress.done}/{progress.samples}", clock(seconds)]
    if progress.reused:
        parts.insert(1, f"{progress.reused} reused")
    if progress.errors:
        parts.insert(1, f"{progress.errors} errors")
    if made >= SETTLED:
        left = (progress.samples - progress.done) * seconds / made
        parts += [f"{progress.output_tokens / seconds:.0f} tok/s", f"{clock(left)} left"]
    if isinstance(progress, ClusterProgress):
        parts.append(cluster_text(progress))
    return ", ".join(parts)


def cluster_text(progress: ClusterProgress) -> str:
    """8 replicas at 131-148 tok/s, 1 starting, 2 lost. Rates are of each since it began; losses are so far."""
    rates = sorted(progress.replicas.values())
    text = f"{len(rates)} replica" + "s" * (len(rates) != 1)
    if rates and progress.done - progress.resumed - progress.reused >= SETTLED:
        low, high = f"{rates[0]:.0f}", f"{rates[-1]:.0f}"
        text += f" at {low if low == high else f'{low}-{high}'} tok/s"
    for number, what in ((progress.starting, "starting"), (progress.lost, "lost"), (progress.twins, "twins equal")):
        text += f", {number} {what}" * (number > 0)
    return text


def check_text(done: int, total: int, seconds: float) -> str:
    """120,000/1,000,000, 0:01, 240,000 rows/s, 0:04 left"""
    parts = [f"{done:,}/{total:,}", clock(seconds)]
    if done and seconds:
        parts += [f"{done / seconds:,.0f} rows/s", f"{clock((total - done) * seconds / done)} left"]
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """9:05, or 2:09:05 with hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
