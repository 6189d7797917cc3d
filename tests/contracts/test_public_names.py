"""The public names, as a literal list, so that growth shows in review."""

import subprocess
import sys
import tomllib

import pytest
from contracts.source_tree import ROOT

import batchgen

PUBLIC = [
    "BatchgenError",
    "Completion",
    "Engine",
    "JobSpec",
    "Request",
    "RunConfig",
    "SamplingParams",
    "load_spec",
    "run_job",
    "verify_run",
]


def test_the_names_are_these() -> None:
    assert batchgen.__all__ == PUBLIC
    assert len(PUBLIC) <= 10


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_is_there_and_documented(name: str) -> None:
    value = getattr(batchgen, name)
    assert value.__name__ == name
    assert value.__doc__


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'batchgen' has no attribute 'generate'"):
        batchgen.generate  # noqa: B018


def test_dir_shows_the_names_before_they_are_loaded() -> None:
    program = "import batchgen, sys; print(set(batchgen.__all__) <= set(dir(batchgen)), 'batchgen.spec' in sys.modules)"
    shown = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["True", "False"]


def test_the_version_is_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert batchgen.__version__ == project["version"]
    assert f"## {batchgen.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
