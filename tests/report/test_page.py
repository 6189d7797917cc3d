"""The page: what it holds, that no text of a run becomes markup, that it loads nothing, that it can be read."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.report_runs import HOSTILE, SECTIONS, Page, failed, hostile, ok, write_run

from batchgen.io.manifest import Tally
from batchgen.records import Completion, Request
from batchgen.report.page import render
from batchgen.report.summary import Summary, summarise

CSS = (Path(__file__).parents[2] / "batchgen/report/page.css").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    keys = [f"{at}|{text}" for at, text in enumerate(HOSTILE)]
    about = {"self_test": {"note": HOSTILE[0], "<b>": {"<i>": 1}}, HOSTILE[4]: HOSTILE[2]}
    folder = tmp_path_factory.mktemp("hostile")
    run = write_run(folder, keys, hostile, sampling={"n": 3, "stop": [HOSTILE[0]]}, about=about)
    return summarise(run, lambda ids: HOSTILE[0])


def page_of(run: Path) -> Page:
    return Page(render(summarise(run)))


def shape(page: Page) -> list[str]:
    """The elements but for the marks of charts and the rows of tables, whose number hangs on the machine's speed."""
    marks = {"rect", "line", "text", "title", "polyline", "polygon", "tr", "th", "td"}
    return [tag for tag, _ in page.elements if tag not in marks]


def test_no_text_becomes_markup(hostile_run: Summary, tmp_path: Path) -> None:
    """The same run with harmless texts has the same elements."""
    page = Page(render(hostile_run))
    keys = [f"{at}|plain" for at in range(len(HOSTILE))]

    def harmless(request: Request) -> Completion:
        at = int(request.row_key.split("|")[0])
        return failed(request, "plain") if request.sample_index == 2 else ok(request, [at], "plain")

    about = {"self_test": {"note": "plain", "a": {"b": 1}}, "c": "d"}
    run = write_run(tmp_path, keys, harmless, sampling={"n": 3, "stop": ["plain"]}, about=about)
    assert shape(page) == shape(Page(render(summarise(run, lambda ids: "plain"))))
    assert not page.all("img")
    assert [name for _, attributes in page.elements for name in attributes if name.startswith("on")] == []
    assert len(page.all("script")) == len(page.all("style")) == 1


def test_hostile_text_is_shown_as_it_is(hostile_run: Summary) -> None:
    text = Page(render(hostile_run)).text
    for wanted in (*HOSTILE[:7], HOSTILE[9], HOSTILE[11], "␀␛[31m␇�", "[U+202E]moc.elpmaxe[U+2066][U+2069]"):
        assert " ".join(wanted.split()) in text


def test_no_character_acts(hostile_run: Summary) -> None:
    html = render(hostile_run)
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html) == []


def test_escaping_would_be_missed(hostile_run: Summary) -> None:
    """The tests above see an image in a page whose template forgot to escape."""
    html = render(hostile_run).replace("&lt;", "<").replace("&gt;", ">")
    assert Page(html).all("img")


def loads(page: Page) -> list[str]:
    """What a browser would fetch for it."""
    found = [
        f"{tag} {name}={value}"
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "action", "poster", "data", "background")
        and not str(value).startswith(("#", "data:,"))
    ]
    return found + [tag for tag, _ in page.elements if tag in ("iframe", "object", "embed", "base", "form")]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", []),
        ('<link rel="stylesheet" href="x.css">', ["link href=x.css"]),
        ('<script src="//a.example/x.js"></script>', ["script src=//a.example/x.js"]),
        ("<iframe></iframe>", ["iframe"]),
    ],
)
def test_the_page_loads_nothing(hostile_run: Summary, more: str, found: list[str]) -> None:
    html = render(hostile_run)
    assert loads(Page(html + more)) == found
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert re.findall(r"@import|url\((?!#)", styles) == []
    assert not re.search(r"https?://", html), "nothing to fetch, and nothing that looks like it"


def test_the_page_forbids_itself_to_load(hostile_run: Summary) -> None:
    [policy] = [str(meta["content"]) for meta in Page(render(hostile_run)).all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("good", [True, False])
def test_runs_of_any_size_have_every_section(tmp_path: Path, count: int, n: int, good: bool) -> None:
    def answer(request: Request) -> Completion:
        return ok(request, [1], "") if good else failed(request)

    run = write_run(tmp_path, [f"row-{i}" for i in range(count)], answer, sampling={"n": n})
    page = page_of(run)
    assert [each for each in page.ids() if each in SECTIONS] == SECTIONS
    assert len(set(page.ids())) == len(page.ids())
    anchors = [str(link["href"]).removeprefix("#") for link in page.all("a")]
    assert anchors == SECTIONS
    assert ("(empty)" in page.text) == good
    assert f"{n * count} of {n * count} sample" in page.text


def test_huge_numbers(hostile_run: Summary) -> None:
    many = 10**15
    lengths = replace(hostile_run.tally, rows=4 * many, stop=many, length=2 * many, error=many)
    text = Page(render(replace(hostile_run, tally=lengths, planned=4 * many, prompts=many))).text
    assert "4,000,000,000,000,000" in text
    assert "nan" not in text.lower()


def test_a_tally_of_nothing_divides_by_nothing(hostile_run: Summary) -> None:
    assert "No row is made yet." in Page(render(replace(hostile_run, tally=Tally(), samples=()))).text


# Colours


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def palette(theme: int) -> dict[str, str]:
    """The variables of the style, 0 light, 1 dark."""
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", CSS)
    return {name: colours[theme] for name, *colours in pairs}


TEXTS: Sequence[str] = ("ink", "muted", "blue", "amber", "red", "green", "violet", "teal")


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("ground", ["paper", "panel"])
def test_text_can_be_read(theme: int, name: str, ground: str) -> None:
    colours = palette(theme)
    assert contrast(colours[name], colours[ground]) >= 4.5


def test_every_colour_is_a_variable_of_both_themes() -> None:
    assert palette(0).keys() == palette(1).keys() == {*TEXTS, "paper", "panel", "rule"}
    rules = CSS.split("}", 1)[1]
    assert re.findall(r"#[0-9a-f]{3,8}\b|rgb", rules) == []
    assert set(re.findall(r"var\(--(\w+)\)", CSS)) <= palette(0).keys()


def test_contrast_is_as_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
