"""Charts: every mark lies inside its plot, and what it stands for can be read from its title."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from support.report_events import commit, event, timeline

from batchgen.report.lengths import Histogram
from batchgen.report.svg import HEIGHT, bar_chart, category_chart, rate_chart, replicas, share_bar


class Marks(HTMLParser):
    """The elements of a chart and their attributes, and the titles."""

    def __init__(self, svg: str) -> None:
        super().__init__()
        self.marks: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self.titles: list[str] = []
        self.feed(svg)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.marks.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [attributes for _, attributes in self.marks if kind in str(attributes.get("class", "")).split()]


def check_inside(chart: Marks) -> None:
    for tag, mark in chart.marks:
        if tag == "rect":
            left, width = (float(mark[name].rstrip("%")) for name in ("x", "width"))
            top, height = (float(mark.get(name, 0)) for name in ("y", "height"))
            assert -0.01 <= left <= left + width <= 100.01
            assert -1.51 <= top <= top + height <= HEIGHT + 0.01
            assert width > 0
        if tag == "polyline":
            points = [tuple(map(float, point.split(","))) for point in mark["points"].split()]
            assert all(0 <= x <= 1000.01 and 0 <= y <= HEIGHT for x, y in points)
    assert "nan" not in str(chart.marks)


HISTOGRAMS = [
    Histogram((0, 1), {"a": (1,), "b": (0,)}),
    Histogram((0, 10, 20, 30), {"a": (0, 10**15, 1), "b": (1, 0, 0)}),
    Histogram(tuple(range(25)), {"a": tuple(range(24)), "b": tuple(range(24))}),
]


@pytest.mark.parametrize("data", HISTOGRAMS, ids=lambda data: str(len(data.edges)))
def test_bars(data: Histogram) -> None:
    chart = Marks(bar_chart(data, {"a": "first", "b": "second"}, "a <label>"))
    check_inside(chart)
    assert len(chart.of("hit")) == len(chart.titles) == len(data.edges) - 1
    assert len(chart.of("fill-0")) == sum(count > 0 for count in data.series["a"])
    assert len(chart.of("fill-1")) == sum(count > 0 for count in data.series["b"])
    assert chart.of("plot")[0]["aria-label"] == "a <label>"


def test_the_title_of_a_bar() -> None:
    data = Histogram((10, 20, 21), {"a": (1500, 0), "b": (500, 2000)})
    titles = Marks(bar_chart(data, {"a": "ended", "b": "cut"}, "x")).titles
    assert titles == [
        "10–19 tokens: 2,000 (50%), 1,500 ended, 500 cut",
        "20 tokens: 2,000 (50%), 0 ended, 2,000 cut",
    ]


def test_heights_are_in_proportion() -> None:
    chart = Marks(bar_chart(Histogram((0, 1, 2), {"a": (40, 80)}), {"a": "x"}, "x"))
    low, high = (float(bar["height"]) for bar in chart.of("fill-0"))
    assert high == pytest.approx(2 * low)


def test_a_bar_of_one_among_many_is_seen() -> None:
    chart = Marks(bar_chart(Histogram((0, 1, 2), {"a": (1, 10**9)}), {"a": "x"}, "x"))
    assert min(float(bar["height"]) for bar in chart.of("fill-0")) >= 1.5


@pytest.mark.parametrize("n", [2, 8, 64, 500])
def test_categories(n: int) -> None:
    chart = Marks(category_chart(list(range(1, n + 1)), [f"<{i}>" for i in range(n)], "x"))
    check_inside(chart)
    assert chart.titles == [f"<{i}>" for i in range(n)]
    assert len(chart.of("x")) <= 12
    assert len(chart.of("fill-1")) == 1, "the prompts whose samples are all the same stand out"


def test_parts_fill_the_bar() -> None:
    chart = Marks(share_bar([("<a>", 1, "fill-0"), ("none", 0, "fill-1"), ("b", 10**6, "fill-2")], "x"))
    assert sum(float(part["width"].rstrip("%")) for part in chart.of("part")) == pytest.approx(100, abs=0.01)
    assert chart.titles == ["<a>: 1 (<0.1%)", "b: 1,000,000 (>99.9%)"]
    assert Marks(share_bar([], "x")).of("part") == []


def test_a_line_for_each_replica_and_a_band_for_each_pause() -> None:
    events = [event(0, "start"), *(commit(0, at, name) for at in (2, 5, 9) for name in ("<a>", "b"))]
    events += [event(10, "stop", reason="SIGINT"), event(3610, "start"), commit(3610, 30, "b"), event(3641, "finish")]
    found = timeline(events)
    assert replicas(found) == ["<a>", "b"]
    chart = Marks(rate_chart(found, "output_tokens", "tokens/s", "x"))
    check_inside(chart)
    assert len(chart.of("line-0")) == 1
    assert len(chart.of("line-1")) == 2
    [pause] = chart.of("pause")
    band = float(pause["x"].rstrip("%")), float(pause["width"].rstrip("%"))
    for line in chart.of("line"):
        xs = [float(point.split(",")[0]) / 10 for point in line["points"].split()]
        assert all(not band[0] + 0.01 < x < sum(band) - 0.01 for x in xs), "no line crosses a pause"
    assert "stopped (SIGINT); went on after 1 h" in chart.titles
    lines = [re.fullmatch(r"<a>, (.*) to (.*): (.*) tokens/s \((\d+)\)", title) for title in chart.titles]
    assert sum(int(line[4]) for line in lines if line) == 240


@pytest.mark.parametrize("stretches", [1, 2, 50])
@pytest.mark.parametrize("seconds", [0.001, 7, 1e6])
def test_any_number_of_processes_of_any_length(stretches: int, seconds: float) -> None:
    events = []
    for index in range(stretches):
        began = 2 * seconds * index
        events += [event(began, "start"), commit(began, seconds / 2), commit(began, seconds)]
    chart = Marks(rate_chart(timeline(events), "samples", "samples/s", "x"))
    check_inside(chart)
    ticks = [float(tick["x"].rstrip("%")) for tick in chart.of("x")]
    assert ticks == sorted(ticks)
    assert len(ticks) <= 7


def test_a_process_without_rows_has_no_line() -> None:
    chart = Marks(
        rate_chart(timeline([event(0, "start"), event(9, "start"), commit(9, 1)]), "samples", "samples/s", "x")
    )
    check_inside(chart)
    assert len(chart.of("line-0")) == 1
