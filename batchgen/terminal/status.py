"""How far a run is: once, or again and again until it is finished."""

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchgen.places import Place
from batchgen.progress import clock
from batchgen.status import ReplicaStatus, Status, read_status
from batchgen.terminal import count, facts, number, plain

LIVE_SECONDS, LINE_SECONDS = 2.0, 10.0
_REPLICAS, _TROUBLES = 16, 5  # lines
_STYLES = {"finished": "green", "running": "bold", "stopped": "yellow", "quiet": "yellow"}


def print_status(run: Place, console: Console) -> None:
    """The state of the run now."""
    console.print(view(run, read_status(run)), soft_wrap=True)


def watch_status(run: Place, console: Console) -> None:
    """Show the state until the run is finished: in place on a terminal, elsewhere a line from time to time."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            follow(run, LIVE_SECONDS, lambda status: live.update(view(run, status), refresh=True))
    else:
        follow(run, LINE_SECONDS, lambda status: console.out(line(status)))


def follow(run: Place, seconds: float, show: Callable[[Status], None]) -> None:
    """`show` the state at even intervals, and at last that of the finished run."""
    while True:
        status = read_status(run)
        show(status)
        if status.state == "finished":
            return
        time.sleep(seconds)


def line(status: Status) -> str:
    """running: 5,120/10,000 samples, 3 errors, 2 replicas, 812 tok/s, 5:10 left, last commit 0:04 ago"""
    parts = [f"{status.state}: {number(status.done)}/{number(status.samples)} samples"]
    if status.errors:
        parts.append(count(status.errors, "error"))
    if len(working := [replica for replica in status.replicas if not replica.is_gone]) > 1:
        parts.append(count(len(working), "replica"))
    if status.tokens_per_second is not None:
        parts.append(f"{status.tokens_per_second:,.0f} tok/s")
    if status.state == "running" and status.seconds_left is not None:
        parts.append(f"{clock(status.seconds_left)} left")
    if status.state != "finished" and status.since_commit is not None:
        parts.append(f"last commit {clock(status.since_commit)} ago")
    if status.reason:
        parts.append(status.reason)
    return ", ".join(parts)


def view(run: Place, status: Status) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [_heading(run, status)]
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(status.samples, status.done, width=60), f"{100 * status.done // max(1, status.samples)}%")
    parts += [bar, facts(_facts(status))]
    if len(status.replicas) > 1:
        parts.append(_replicas(status.replicas))
    hidden = len(status.troubles) - _TROUBLES
    parts += [plain(trouble, "yellow") for trouble in status.troubles[-_TROUBLES:]]
    if hidden > 0:
        parts.append(Text(f"and {number(hidden)} more before", "dim"))
    return Group(*parts)


def _heading(run: Place, status: Status) -> Text:
    text = Text.assemble(plain(run), ": ", (status.state, _STYLES[status.state]))
    if status.reason:
        text.append_text(plain(f", {status.reason}"))
    if status.state == "quiet":
        text.append(": no process here is at work on it, and the last one said no word of its end")
    return text


def _facts(status: Status) -> list[tuple[str, object]]:
    rates = None
    if status.tokens_per_second is not None and status.samples_per_second is not None:
        rates = f"{status.tokens_per_second:,.0f} tok/s, {status.samples_per_second:,.1f} samples/s"
    left = status.seconds_left if status.state == "running" else None
    there = f"{number(status.done)} of {number(status.samples)}, {count(status.errors, 'error')}"
    probes = f"{number(status.probes)} bit-exact" if status.probes else "none yet"
    if status.failed_probes:
        probes += f", {number(status.failed_probes)} that differed: see evidence/ in the run"
    at_work = None if status.seconds is None else clock(status.seconds)
    if at_work and status.processes > 1:
        at_work += f", by the latest of {status.processes} processes"
    commit = None if status.since_commit is None else f"{clock(status.since_commit)} ago"
    return [
        ("samples", there),
        ("shards", f"{number(status.shards_done)} of {number(status.shards)}"),
        ("tokens", f"{number(status.prompt_tokens)} in, {number(status.output_tokens)} out"),
        ("probes", probes),
        ("twins", f"{number(status.twins)} bit-exact" if status.twins else None),
        ("at work", at_work),
        ("rate", rates),
        ("left", None if left is None else f"about {clock(left)}"),
        ("last commit", None if status.state == "finished" else commit),
        ("root", status.root),
    ]


def _replicas(replicas: tuple[ReplicaStatus, ...]) -> Table:
    """Each of them; of many the slowest and those of which nothing came for longest."""
    shown = list(replicas)
    if len(replicas) > _REPLICAS:
        working = [replica for replica in replicas if not replica.is_gone]
        silent = sorted(working, key=lambda replica: -(replica.since_commit or 0.0))[: _REPLICAS // 2]
        slow = sorted(working, key=lambda replica: replica.tokens_per_second or 0.0)
        shown = sorted([*silent, *(r for r in slow if r not in silent)][:_REPLICAS], key=lambda replica: replica.name)
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(name, "dim") for name in ("replica", "shards", "samples", "tok/s", "last commit")))
    for replica in shown:
        rate = "" if replica.tokens_per_second is None else f"{replica.tokens_per_second:,.0f}"
        ago = "none yet" if replica.since_commit is None else f"{clock(replica.since_commit)} ago"
        cells = (number(replica.shards), number(replica.samples), rate, "lost" if replica.is_gone else ago)
        table.add_row(plain(replica.name), *cells)
    if rest := [replica for replica in replicas if replica not in shown]:
        shards, samples = (sum(getattr(replica, name) for replica in rest) for name in ("shards", "samples"))
        rate = f"{sum(replica.tokens_per_second or 0.0 for replica in rest if not replica.is_gone):,.0f}"
        table.add_row(Text(f"and {number(len(rest))} more", "dim"), number(shards), number(samples), rate, "")
    return table
