"""A page in headless Chromium: its elements after its scripts ran, what its console said, and a picture."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)


@dataclass(frozen=True)
class Seen:
    """`console` has one line for each message."""

    dom: str
    console: list[str]


def visit(page: Path, *flags: str) -> Seen:
    """Open the file `page`; its DOM, and the messages of its console."""
    done = _run(page, "--dump-dom", *flags)
    return Seen(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])


def picture(page: Path, width: int, height: int) -> bytes:
    """PNG."""
    png = page.with_suffix(".png")
    _run(page, f"--window-size={width},{height}", f"--screenshot={png}")
    return png.read_bytes()


def _run(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    profile = page.parent / "profile"
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    try:
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    finally:
        shutil.rmtree(profile, ignore_errors=True)
