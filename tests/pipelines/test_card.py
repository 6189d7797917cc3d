"""Cards: front matter that hubs can read, Croissant that its own library loads, and the numbers of the run in both."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.errors import RunError
from batchgen.io.manifest import read_manifest, write_manifest
from batchgen.pipelines.card import write_card
from batchgen.pipelines.croissant import croissant
from batchgen.verify.integrity import verify_run

LOAD = """\
import json, sys, mlcroissant
dataset = mlcroissant.Dataset(sys.argv[1])
plain = lambda value: value.decode() if isinstance(value, bytes) else value
rows = [{key: plain(value) for key, value in row.items()} for row in dataset.records("samples")]
names = ["samples/row_key", "samples/sample_index", "samples/text", "samples/row_hash", "samples/token_ids"]
print(json.dumps({"errors": list(dataset.metadata.issues.errors), "rows": [[row[n] for n in names] for row in rows]}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_input(tmp_path, rows=20, bad=[3])
    run(make_job(tmp_path, sampling={"logprobs": 1}), tmp_path / "run")
    return tmp_path


def test_croissant_is_what_its_library_reads(folder: Path) -> None:
    write_card(folder / "run", "apache-2.0")
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, str(folder / "run/croissant.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["errors"] == []
    names = ("row_key", "sample_index", "text", "row_hash", "token_ids")
    assert found["rows"] == [[row[name] for name in names] for row in read_rows(folder / "run").to_pylist()]


def test_croissant_names_files_and_sources(folder: Path) -> None:
    found = croissant(folder / "run", read_manifest(folder / "run"), "other")
    files = [one for one in found["distribution"] if one["@type"] == "cr:FileObject"]
    assert [one["contentUrl"] for one in files] == [f"rows/part-0000{i}.parquet" for i in range(3)]
    assert all(len(one["sha256"]) == 64 for one in files)
    assert found["isBasedOn"][0]["name"] == "in.parquet"


def field(found: dict[str, Any], name: str) -> dict[str, Any]:
    fields: list[dict[str, Any]] = found["recordSet"][0]["field"]
    return next(one for one in fields if one["name"] == name)


def test_the_types_of_columns(folder: Path) -> None:
    found = croissant(folder / "run", read_manifest(folder / "run"), "other")
    assert field(found, "seed")["dataType"] == "sc:Integer"
    assert (field(found, "logprobs")["dataType"], field(found, "logprobs")["arrayShape"]) == ("sc:Float", "-1")
    assert field(found, "top_logprobs_ids")["arrayShape"] == "-1,-1"
    [score, tags] = field(found, "meta")["subField"]
    assert (score["dataType"], tags["dataType"]) == ("sc:Float", "sc:Text")
    assert tags["source"]["transform"] == [{"jsonPath": "tags"}]


def test_the_card(folder: Path) -> None:
    readme, _ = write_card(folder / "run", "apache-2.0")
    text = readme.read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert YAML(typ="safe").load(front) == {
        "pretty_name": "test",
        "license": "apache-2.0",
        "task_categories": ["text-generation"],
        "tags": ["synthetic", "batchgen"],
        "size_categories": ["n<1K"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "rows/*.parquet"}]}],
    }
    manifest = read_manifest(folder / "run")
    for part in (str(manifest.root), "40: ", f"{manifest.counts.output_tokens:,}", "in.parquet", "`meta` | from the"):
        assert part in body


def test_a_run_with_a_card_is_the_same_run(folder: Path) -> None:
    write_card(folder / "run", "other")
    first = (folder / "run/README.md").read_bytes()
    write_card(folder / "run", "other")
    assert (folder / "run/README.md").read_bytes() == first
    assert verify_run(folder / "run").ok


def test_a_readme_of_someone_else_stays(folder: Path) -> None:
    (folder / "run/README.md").write_text("mine")
    with pytest.raises(RunError, match="is no card"):
        write_card(folder / "run", "other")
    assert not (folder / "run/croissant.json").exists()


def test_an_unfinished_run_has_no_card(folder: Path) -> None:
    manifest = read_manifest(folder / "run")
    write_manifest(folder / "run", manifest.with_shards(manifest.shards[:-1]))
    with pytest.raises(RunError, match="is not finished"):
        write_card(folder / "run", "other")
