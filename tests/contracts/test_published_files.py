"""What users and CI hold on to: the schemas, the jobs, the README's commands, .ci/run."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from contracts.source_tree import ROOT

from batchgen.spec import load_spec
from batchgen.strict_yaml import read_yaml

SCHEMAS = ("job", "rows", "manifest")
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))


def schema(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    return content


def commands(text: str) -> list[str]:
    """The lines of a document's console blocks, in order."""
    return [
        line for block in re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_is_a_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["title"] == f"batchgen {name.removesuffix('s')}"


def test_there_are_no_other_schemas() -> None:
    assert sorted(path.name for path in (ROOT / "schemas").iterdir()) == sorted(f"{n}.schema.json" for n in SCHEMAS)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_each_job_loads_and_fits_the_schema(path: Path) -> None:
    document, problems = read_yaml(path)
    assert problems == []
    jsonschema.validate(document, schema("job"))
    assert load_spec(path).name == path.stem


def test_a_misspelt_job_does_not_fit_the_schema() -> None:
    document, _ = read_yaml(ROOT / "jobs" / "quickstart.yaml")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "sampels": 2}, schema("job"))


def test_ci_runs_the_test_commands_of_the_readme() -> None:
    readme = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    at = readme.index("pip install '.[test]'")
    assert readme[at + 1] == "pytest -n 2 --dist loadfile"
    assert set(readme[at : at + 2]) <= set(script)
    assert script[-1] == readme[at + 1], "the last thing that CI prints is pytest's closing line"
    assert "set -euo pipefail" in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_readme_begins_with_the_quickstart() -> None:
    readme = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert readme[:4] == [
        "python -m venv .venv",
        "source .venv/bin/activate",
        "pip install .",
        "batchgen run jobs/quickstart.yaml",
    ]


def test_links_in_the_documents_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
