"""Charts as SVG text. All text in them is escaped here; widths are in percent, so text keeps its size at any width.

A chart is an element whose plot fills it; axis labels lie outside, in the margins that the class `chart` leaves.
Colours are classes: page.css gives them their values in both themes, and a pattern or a dash to each, so that no chart
is read by colour alone.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from html import escape
from itertools import accumulate

from batchgen.report.lengths import Histogram
from batchgen.report.timeline import Step, Stretch, Timeline
from batchgen.report.words import clock, compact, number, percent

HEIGHT = 180  # pixels of a plot
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_WIDEST = 100 / 6  # percent: of a bar among few
_PAUSE, _ALL_PAUSES = 4.0, 40.0  # percent of the time axis: one, and at most together


def bar_chart(data: Histogram, names: Mapping[str, str], label: str, unit: str = "tokens") -> str:
    """Stacked bars, one for each bin; `names` says what each series is, in the order from the ground up."""
    totals = [sum(counts) for counts in zip(*data.series.values(), strict=True)]
    top, lines = _grid(max(totals))
    width = 100 / len(totals)
    bar = min(width, _WIDEST)
    everything = sum(totals)
    marks: list[str] = []
    for index, total in enumerate(totals):
        x, below = index * width, 0
        for at, series in enumerate(names):
            count = data.series[series][index]
            marks += _bar(x + (width - bar) / 2, bar, below / top, (below + count) / top, f"fill-{at}") if count else []
            below += count
        what = [f"{number(data.series[series][index])} {name}" for series, name in names.items() if len(names) > 1]
        share = f"{number(total)} ({percent(total, everything)})"
        title = f"{bin_name(data.edges, index)} {unit}: {', '.join([share, *what])}"
        marks.append(_hit(x, width, title))
    skip = math.ceil(len(data.edges) / 6)
    ticks = [(index * width, compact(edge)) for index, edge in enumerate(data.edges) if index % skip == 0]
    return _chart([*lines, *marks, *_x_axis(ticks)], label)


def category_chart(counts: Sequence[int], titles: Sequence[str], label: str) -> str:
    """One bar for each of 1, 2, … len(counts)."""
    top, lines = _grid(max(counts))
    width = 100 / len(counts)
    bar = min(width, _WIDEST)
    marks: list[str] = []
    for index, count in enumerate(counts):
        kind = "fill-0" if index else "fill-1"  # 1: all the same
        marks += _bar(index * width + (width - bar) / 2, bar, 0, count / top, kind) if count else []
        marks.append(_hit(index * width, width, titles[index]))
    skip = math.ceil(len(counts) / 12)
    ticks = [((index + 0.5) * width, str(index + 1)) for index in range(0, len(counts), skip)]
    return _chart([*lines, *marks, *_x_axis(ticks)], label)


def rate_chart(timeline: Timeline, what: str, unit: str, label: str) -> str:
    """One stepped line for each replica, over time at work; pauses are bands of an even width.

    `what` is a field of Step that counts: samples or output_tokens.
    """
    axis = _TimeAxis(timeline)
    names = replicas(timeline)
    rates = [_rate(step, what) for stretch in timeline.stretches for steps in stretch.steps.values() for step in steps]
    top, lines = _grid(max(rates, default=0.0))
    paths: list[str] = []
    hits: list[str] = []
    for index, stretch in enumerate(timeline.stretches):
        for name, steps in stretch.steps.items():
            points = []
            for step in steps:
                rate = _rate(step, what)
                left, right = axis.percent(index, step.start), axis.percent(index, step.stop)
                y = HEIGHT * (1 - rate / top)
                points += [(10 * left, y), (10 * right, y)]
                when = f"{clock(axis.starts[index] + step.start)} to {clock(axis.starts[index] + step.stop)}"
                title = f"{name}, {when}: {compact(rate)} {unit} ({number(getattr(step, what))})"
                hits.append(_line(left, right, y, "hit", title))
            paths += _path(points, names.index(name), area=len(names) == 1)
    plot = f'<svg viewBox="0 0 1000 {HEIGHT}" width="100%" height="{HEIGHT}" preserveAspectRatio="none">'
    return _chart([*axis.pauses(), *lines, plot, *paths, "</svg>", *hits, *_x_axis(axis.ticks())], label)


def share_bar(parts: Iterable[tuple[str, int, str]], label: str) -> str:
    """One bar that is divided: (name, count, class) of each part."""
    parts = [part for part in parts if part[1]]
    total = sum(count for _, count, _ in parts)
    marks, x = [], 0.0
    for name, count, kind in parts:
        width = 100 * count / total
        title = escape(f"{name}: {number(count)} ({percent(count, total)})")
        marks.append(
            f'<rect class="{kind} part" x="{x:.3f}%" width="{width:.3f}%" height="100%"><title>{title}</title></rect>'
        )
        x += width
    return f'<svg class="share" role="img" aria-label="{escape(label)}">{"".join(marks)}</svg>'


def bin_name(edges: Sequence[int], index: int) -> str:
    """40–49, or 7 for a bin of one length."""
    first, last = edges[index], edges[index + 1] - 1
    return number(first) if first == last else f"{number(first)}–{number(last)}"


def replicas(timeline: Timeline) -> list[str]:
    """The names of all replicas, in order."""
    return sorted({name for stretch in timeline.stretches for name in stretch.steps})


class _TimeAxis:
    """Seconds at work -> percent of the width. Before each stretch but the first a band stands for the pause."""

    def __init__(self, timeline: Timeline) -> None:
        self._stretches = timeline.stretches
        self.starts = list(accumulate((stretch.seconds for stretch in timeline.stretches), initial=0.0))
        self._seconds = max(self.starts.pop(), 0.001)
        pauses = len(self.starts) - 1
        self._band = min(_PAUSE, _ALL_PAUSES / max(1, pauses))
        self._scale = (100 - self._band * pauses) / self._seconds

    def percent(self, index: int, seconds: float) -> float:
        """Of a moment in a stretch, by its seconds since that began."""
        return (self.starts[index] + seconds) * self._scale + index * self._band

    def pauses(self) -> list[str]:
        bands = []
        for index, stretch in enumerate(self._stretches[1:], 1):
            x = self.percent(index, 0.0) - self._band
            title = escape(f"{how_it_ended(self._stretches[index - 1])}; went on after {clock(stretch.pause)}")
            box = f'x="{x:.3f}%" width="{self._band:.3f}%" height="{HEIGHT}"'
            bands.append(f'<rect class="pause" {box}><title>{title}</title></rect>')
        return bands

    def ticks(self) -> list[tuple[float, str]]:
        """At round times at work; a time that ends a stretch also begins the next, and is marked there once."""
        step = next((step for step in _TIME_STEPS if self._seconds / step <= 5), math.ceil(self._seconds / 5))
        times = [step * count for count in range(int(self._seconds // step) + 1)]
        at = [(bisect_right(self.starts, time) - 1, time) for time in times]
        return [(self.percent(index, time - self.starts[index]), clock(time)) for index, time in at]


def how_it_ended(stretch: Stretch) -> str:
    """In words, for people."""
    if stretch.end == "stop":
        return f"stopped ({stretch.reason})" if stretch.reason else "stopped"
    return "finished" if stretch.end == "finish" else "ended without a word"


def _rate(step: Step, what: str) -> float:
    count: int = getattr(step, what)
    return count / step.seconds if step.seconds > 0 else 0.0


def _path(points: Sequence[tuple[float, float]], replica: int, *, area: bool) -> Iterator[str]:
    if not points:
        return
    line = " ".join(f"{x:.2f},{y:.1f}" for x, y in points)
    if area:
        yield f'<polygon class="area" points="{points[0][0]:.2f},{HEIGHT} {line} {points[-1][0]:.2f},{HEIGHT}"/>'
    yield f'<polyline class="line line-{replica % 6}" points="{line}"/>'


def _bar(x: float, width: float, low: float, high: float, kind: str) -> Iterator[str]:
    """Heights are shares of the plot. A bar is never so low that it cannot be seen."""
    height = max(1.5, HEIGHT * (high - low))
    box = f'x="{x + 0.06 * width:.3f}%" y="{HEIGHT * (1 - low) - height:.2f}" width="{0.88 * width:.3f}%"'
    yield f'<rect class="{kind}" {box} height="{height:.2f}"/>'


def _hit(x: float, width: float, title: str) -> str:
    """What the pointer finds: the bar's whole column."""
    box = f'x="{x:.3f}%" y="0" width="{width:.3f}%" height="{HEIGHT}"'
    return f'<rect class="hit" {box}><title>{escape(title)}</title></rect>'


def _line(left: float, right: float, y: float, kind: str, title: str) -> str:
    ends = f'x1="{left:.3f}%" x2="{right:.3f}%" y1="{y:.1f}" y2="{y:.1f}"'
    return f'<line class="{kind}" {ends}><title>{escape(title)}</title></line>'


def _grid(most: float) -> tuple[float, list[str]]:
    """A round top of the y axis, and its lines with their labels."""
    step = next(step for step in _round_steps() if most / step <= 4)
    count = max(1, math.ceil(most / step))
    lines = []
    for index in range(count + 1):
        y = HEIGHT * (1 - index / count)
        lines.append(f'<line class="grid" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="y" x="-8" y="{y:.1f}" dy=".32em">{compact(index * step)}</text>')
    return step * count, lines


def _round_steps() -> Iterator[float]:
    """0.001, 0.002, 0.005, 0.01, …"""
    unit = Decimal("0.001")
    while True:
        yield from (float(unit), float(2 * unit), float(5 * unit))
        unit *= 10


def _x_axis(ticks: Iterable[tuple[float, str]]) -> Iterator[str]:
    for x, text in ticks:
        yield f'<line class="tick" x1="{x:.3f}%" x2="{x:.3f}%" y1="{HEIGHT}" y2="{HEIGHT + 4}"/>'
        yield f'<text class="x" x="{x:.3f}%" y="{HEIGHT + 17}">{escape(text)}</text>'


def _chart(parts: Iterable[str], label: str) -> str:
    head = f'<svg class="plot" width="100%" height="{HEIGHT}" role="img" aria-label="{escape(label)}">'
    return f'<div class="chart">{head}{"".join(parts)}</svg></div>'
