"""Jobs with a grammar, kept tokens and routed experts: probed, made by processes of their own, and made again."""

import json
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
from support.jobs import write_parquet
from support.tiny_jobs import make
from support.tiny_models import write_tiny

from batchgen.errors import EngineError, SpecError
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import read_manifest
from batchgen.text import structured
from batchgen.verify.choice import all_rows
from batchgen.verify.ledger import Ledger
from batchgen.verify.prompts import StoredPrompts
from batchgen.verify.replay import other_config, replay_rows

JOB = """\
version: 1
name: formed
model: {path: model, max_model_len: 200}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}}]
row_key: {column: id}
sampling:
  n: 2
  max_tokens: 60
  logprobs: 1
  top_p: 0.99
  kept_tokens: 400
  routed_experts: true
  structured_outputs:
    json_schema:
      type: object
      properties:
        title: {type: string, maxLength: 5}
        stars: {type: integer, minimum: 1, maximum: 5}
      required: [title, stars]
      additionalProperties: false
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 5},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["title", "stars"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("formed")
    write_tiny(there / "model", "qwen3_moe")
    prompts = [None if i == 3 else f"Say {i}: " + "word " * (i * 5 % 17) for i in range(11)]
    write_parquet(there / "in.parquet", id=[f"k{i}" for i in range(11)], prompt=prompts)
    (there / "job.yaml").write_text(JOB)
    return there


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run with every sample made twice."""
    report = make(folder, folder / "whole", probe=1.0)
    assert report.probes == 20
    return folder / "whole"


def test_every_answer_is_one_of_the_schema(whole: Path) -> None:
    rows = [row for part in sorted((whole / "rows").glob("*.parquet")) for row in pq.read_table(part).to_pylist()]
    answers = [row["text"] for row in rows if row["status"] == "ok"]
    assert len(answers) == 20
    for answer in answers:
        jsonschema.validate(json.loads(answer), SCHEMA)
    for row in rows:
        assert (row["kept_tokens"] is None) is (row["routed_experts"] is None) is (row["status"] == "error")
        assert all(t in kept for t, kept in zip(row["token_ids"] or (), row["kept_tokens"] or (), strict=True))
    assert {row["finish_reason"] for row in rows} == {"stop", "error"}


@pytest.mark.slow
def test_ranks_that_share_experts_make_the_same(folder: Path, whole: Path) -> None:
    """In processes of their own, each with the grammar compiled anew."""
    other = make(folder, folder / "ranks", expert_parallel_size=2, max_num_seqs=3, max_num_batched_tokens=40)
    assert other.root == read_manifest(whole).root


def test_it_can_be_made_again(whole: Path) -> None:
    ledger = Ledger.open(whole, lambda done, total: None)
    engine = ledger.start_engine(other_config(whole, ledger.manifest.run_config))
    found = replay_rows(ledger, engine, all_rows(ledger.manifest), StoredPrompts())
    assert (found.exact, found.bad, found.prompt_errors) == (20, 0, 2)


def test_another_compiler_of_grammars_is_refused(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may allow other tokens; a run without a grammar does not ask."""
    monkeypatch.setattr(structured, "version", lambda name: "0.0.1")
    with pytest.raises(EngineError, match=r"were compiled by llguidance [1-9].*, and here by llguidance 0\.0\.1"):
        Ledger.open(whole, lambda done, total: None)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("max_tokens: 60", "max_tokens: 5", "json_schema: every text of it has [0-9]+ tokens or more"),
        ("type: integer", "type: integre", "json_schema: failed to compile JSON schema: Invalid type: integre"),
    ],
)
def test_a_bad_schema_leaves_no_folder(folder: Path, tmp_path: Path, old: str, new: str, fault: str) -> None:
    (folder / "bad.yaml").write_text(JOB.replace(old, new))
    with pytest.raises(SpecError, match=rf"bad\.yaml: sampling\.structured_outputs\.{fault}"):
        make(folder, tmp_path / "run", "bad")
    assert not (tmp_path / "run").exists()


def test_config_is_no_part_of_it(whole: Path) -> None:
    """The version of the compiler is part of what the rows hang on, as the weights are."""
    assert read_manifest(whole).fingerprint["grammars"].startswith("llguidance ")
    assert RunConfig(whole).recorded().keys().isdisjoint({"grammars", "structured_outputs"})
