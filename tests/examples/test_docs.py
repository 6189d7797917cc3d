"""docs/determinism.md tells users how to check the promise themselves: its commands do what it says."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.console import check, commands

ROOT = Path(__file__).parents[2]


@pytest.mark.model
@pytest.mark.slow
def test_the_commands_of_the_promise(smollm: Path, tmp_path: Path) -> None:
    for folder in ("jobs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", COLUMNS="100")
    found = commands((ROOT / "docs" / "determinism.md").read_text(encoding="utf-8"))
    assert len(found) >= 9
    for command in found:
        check(command, tmp_path, environment)
