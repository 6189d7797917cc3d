"""A run with kept tokens and routed experts: columns, verify, replay. On ranks: test_structured_jobs.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.cli import cli

JOB = """\
version: 1
name: columns
model: {path: model, max_model_len: 96}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}}]
row_key: {column: id}
sampling: {n: 2, temperature: 0.8, top_p: 0.9, max_tokens: 5, kept_tokens: 200, routed_experts: true}
"""


def told(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    write_tiny(folder / "model", "dots1")
    prompts = [None, "x", *(f"Prompt {i}: " + "word " * (3 * i) for i in range(5))]
    write_parquet(folder / "in.parquet", id=[f"k{i}" for i in range(7)], prompt=prompts)
    (folder / "job.yaml").write_text(JOB)
    made = told("run", folder / "job.yaml", "--out", folder / "run", "--threads", 1, "--probe", 1)
    assert made.exit_code == 3, made.output
    return folder


def test_columns(folder: Path) -> None:
    for row in pq.read_table(folder / "run" / "rows").to_pylist():
        if row["status"] == "error":
            assert row["kept_tokens"] is row["routed_experts"] is row["routed_experts_shape"] is None
            continue
        assert all(t in kept for t, kept in zip(row["token_ids"], row["kept_tokens"], strict=True))
        assert row["routed_experts_shape"] == [row["num_prompt_tokens"] + row["num_output_tokens"] - 1, 2, 4]
        experts = np.frombuffer(row["routed_experts"], row["routed_experts_dtype"]).reshape(row["routed_experts_shape"])
        assert not experts[:, 0].any(), "the first layer is dense"
        assert (np.diff(experts[:, 1].astype(int)) > 0).all()


def test_verified_and_made_again(folder: Path) -> None:
    assert told("verify", folder / "run").exit_code == 0
    replayed = told("replay", folder / "run", "--all", "--threads", 1)
    assert replayed.exit_code == 0, replayed.output
    assert "12 of 12 bit-exact" in replayed.output


@pytest.mark.parametrize("name", ["kept_tokens", "routed_experts"])
def test_another_value_is_found(folder: Path, name: str) -> None:
    part = next((folder / "run" / "rows").glob("*.parquet"))
    whole = part.read_bytes()
    table = pq.read_table(part)
    values = table[name].to_pylist()
    values[-1] = [*values[-1][:-1], [3]] if name == "kept_tokens" else values[-1][:-1] + b"\x0c"
    at, field = table.column_names.index(name), table.schema.field(name)
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), part)
    result = told("verify", folder / "run")
    part.write_bytes(whole)
    assert result.exit_code == 8
    assert "'k6' sample 1" in result.output


def test_a_dense_model_has_no_experts(folder: Path) -> None:
    write_tiny(folder / "dense" / "model")
    (folder / "dense" / "job.yaml").write_text(JOB.replace("in.parquet", "../in.parquet"))
    refused = told("run", folder / "dense" / "job.yaml")
    assert refused.exit_code == 4, refused.output
    assert "sampling.routed_experts: the model has no experts" in refused.output
