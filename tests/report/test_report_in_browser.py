"""The page as Chromium shows it: without a message, without a scroll bar, in both themes, with and without scripts."""

import re
from pathlib import Path

import pytest
from support.chromium import CHROMIUM, picture, visit
from support.report_runs import HOSTILE, SECTIONS, Page, hostile, write_run

from batchgen.report import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

# In a frame: what its parent is to know of it.
TELL = """<script>{
  const tell = (...values) => {
    const line = parent.document.createElement("li");
    line.textContent = [window.name, ...values].join(" ; ");
    parent.document.body.append(line);
  };
  %s
}</script>"""
MEASURE = (
    TELL
    % """
  const outside = [...document.querySelectorAll("body *")].filter(
    (element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll, svg"));
  const names = outside.map((element) => element.className || element.tagName);
  const ground = getComputedStyle(document.body).backgroundColor;
  tell(innerWidth, document.documentElement.scrollWidth, ground, ...names);"""
)
TOGGLE = (
    TELL
    % """
  document.getElementById("theme").click();
  tell(document.documentElement.dataset.theme);"""
)
WIDE = '<p class="broad" style="width:3000px">wide</p>'
LIGHT, DARK = "rgb(252, 252, 250)", "rgb(19, 21, 25)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with texts of all kinds, compared with another. Read it, never change it."""
    folder = tmp_path_factory.mktemp("browser")
    keys = [f"{at}|{text}" for at, text in enumerate(HOSTILE)]
    run = write_run(
        folder / "a", keys, hostile, sampling={"n": 3}, about={"self_test": {"a very long name" * 9: "x" * 400}}
    )
    other = write_run(folder / "b", keys, hostile, sampling={"n": 3, "temperature": 0.25})
    write_report(run, decode=lambda ids: " ".join(HOSTILE), against=other)
    return run / "report.html"


def copy(page: Path, target: Path, more: str = "", theme: str = "") -> Path:
    """The page with more at its end, which its own policy would forbid, or in a theme."""
    html = page.read_text(encoding="utf-8")
    if more:
        html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
        html = html.replace("</body>", f"{more}</body>")
    if theme:
        html = html.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    target.write_text(html, encoding="utf-8")
    return target


def frames(page: Path, folder: Path, *flags: str, **frame: tuple[int, str, str]) -> dict[str, list[str]]:
    """What pages tell that stand side by side: name -> (width, more, theme)."""
    html = "<!doctype html>"
    for name, (width, more, theme) in frame.items():
        copy(page, folder / f"{name}.html", more, theme)
        html += f'<iframe name="{name}" src="{name}.html" style="width:{width}px;height:900px;border:0"></iframe>'
    (folder / "frames.html").write_text(html, encoding="utf-8")
    seen = visit(folder / "frames.html", "--allow-file-access-from-files", "--window-size=1400,1000", *flags)
    told = [line.split(" ; ") for line in re.findall(r"<li>(.*?)</li>", seen.dom)]
    assert {name for name, *_ in told} == frame.keys()
    return {name: values for name, *values in told}


def test_the_page_is_whole_and_says_nothing(page: Path) -> None:
    seen = visit(page)
    shown = Page(seen.dom)
    assert seen.console == []
    assert [each for each in shown.ids() if each in SECTIONS] == SECTIONS
    assert "against" in shown.ids()
    assert shown.all("html")[0]["class"] == "js", "its own script ran"
    assert len(shown.all("img")) == 0
    assert len(shown.all("script")) == 1


def test_a_message_would_be_heard(page: Path, tmp_path: Path) -> None:
    more = '<script>undefined_name()</script><img src="http://no.example/x.png"></body>'
    html = page.read_text(encoding="utf-8").replace("</body>", more)
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert len(visit(tmp_path / "page.html").console) == 2, "the policy of the page refused both, aloud"


def test_nothing_is_wider_than_the_window_and_themes_hold(page: Path, tmp_path: Path) -> None:
    told = frames(
        page,
        tmp_path,
        phone=(390, MEASURE, ""),
        narrow=(320, MEASURE, "light"),
        screen=(1280, MEASURE, "dark"),
        broken=(390, WIDE + MEASURE, ""),
        to_dark=(390, TOGGLE, ""),
        to_light=(390, TOGGLE, "dark"),
    )
    assert told["phone"] == ["390", "390", LIGHT]
    assert told["narrow"] == ["320", "320", LIGHT]
    assert told["screen"] == ["1280", "1280", DARK]
    width, scroll_width, _, *names = told["broken"]
    assert int(scroll_width) > int(width), "what is too wide would be seen"
    assert names == ["broad"]
    assert (told["to_dark"], told["to_light"]) == (["dark"], ["light"])


def test_the_theme_is_that_of_the_system(page: Path, tmp_path: Path) -> None:
    dark = "--blink-settings=preferredColorScheme=0"
    told = frames(page, tmp_path, dark, own=(600, MEASURE, ""), light=(600, MEASURE, "light"), to=(600, TOGGLE, ""))
    assert (told["own"][2], told["light"][2], told["to"]) == (DARK, LIGHT, ["light"])


def test_without_scripts_the_page_is_the_same(page: Path, tmp_path: Path) -> None:
    html = re.sub(r"script-src 'sha256-[^']*'", "script-src 'none'", page.read_text(encoding="utf-8"))
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    still = Page(visit(tmp_path / "page.html").dom)
    assert "class" not in still.all("html")[0], "so that no button is shown that does nothing"
    assert still.text == Page(html).text


def test_a_picture_of_each_theme(page: Path, tmp_path: Path) -> None:
    light, dark = (picture(copy(page, tmp_path / "page.html", theme=theme), 390, 800) for theme in ("light", "dark"))
    assert len(light) > 10_000
    assert len(dark) > 10_000
    assert light != dark
