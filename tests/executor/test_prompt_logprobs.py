"""A run with logprobs of the prompts: columns, verify, replay, and one root however it is made."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.cli import cli
from batchgen.engine.scoring import score
from batchgen.io.manifest import read_manifest
from batchgen.rollout import Engine

JOB = """\
version: 1
name: prompts
model: {path: model, max_model_len: 96}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}}]
row_key: {column: id}
sampling: {n: 2, temperature: 0.8, max_tokens: 5, logprobs: 0, prompt_logprobs: 2}
"""


def told(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    write_tiny(folder / "model")
    prompts = [None, "x", *(f"Prompt {i}: " + "word " * (3 * i) for i in range(5))]
    write_parquet(folder / "in.parquet", id=[f"k{i}" for i in range(7)], prompt=prompts)
    (folder / "job.yaml").write_text(JOB)
    assert told("run", folder / "job.yaml", "--out", folder / "run", "--threads", 1, "--probe", 1).exit_code == 3
    return folder


def test_columns(folder: Path) -> None:
    rows = pq.read_table(folder / "run" / "rows").to_pylist()
    assert len(rows) == 14
    with Engine.open(folder / "model", threads=1) as engine:
        for row in rows:
            ids = row["prompt_token_ids"]
            if ids is None:
                assert row["prompt_logprobs"] is row["prompt_top_logprobs_ids"] is None
                continue
            [found] = score(engine._engine, [(ids[:1], ids[1:])]) if len(ids) > 1 else [None]
            assert row["prompt_logprobs"] == [None, *(found.logprobs if found else ())]
            assert [each and len(each) for each in row["prompt_top_logprobs_ids"]] == [None, *[2] * (len(ids) - 1)]


def test_verified_and_made_again(folder: Path) -> None:
    assert told("verify", folder / "run").exit_code == 0
    replayed = told("replay", folder / "run", "--all", "--threads", 1)
    assert replayed.exit_code == 0, replayed.output
    assert "12 of 12 bit-exact" in replayed.output


def test_one_root(folder: Path) -> None:
    small = ("--max-num-seqs", 2, "--max-num-batched-tokens", 9, "--threads", 1)
    assert told("run", folder / "job.yaml", "--out", folder / "other", *small).exit_code == 3
    assert read_manifest(folder / "other").root == read_manifest(folder / "run").root


def test_a_bit_of_one_is_found(folder: Path) -> None:
    part = next((folder / "other" / "rows").glob("*.parquet"))
    table = pq.read_table(part)
    values = table["prompt_logprobs"].to_pylist()
    values[-1][3] *= 1.0000002
    at, field = table.column_names.index("prompt_logprobs"), table.schema.field("prompt_logprobs")
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), part)
    result = told("verify", folder / "other")
    assert result.exit_code == 8
    assert "'k6' sample 1" in result.output
