"""What a row says wrong is that row's error, known before the job runs; what a column cannot hold is the job's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import read_rows
from support.jobs import text_of_bytes
from support.own_jobs import BASE, OWN, SCHEMA, job_text, write_rows
from support.thread_fleet import ThreadFleet
from support.tiny_jobs import make
from support.tiny_models import write_tiny

from batchgen.errors import InputError, RowError, SpecError
from batchgen.executor.base import Job
from batchgen.executor.driver import run_replicas
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.loader import load_job, prompt_builder
from batchgen.preflight import Preflight, preflight
from batchgen.terminal.job import print_preflight
from batchgen.verify.integrity import verify_run

LONG = json.dumps({"type": "array", "items": {"const": "x" * 40}, "minItems": 2})
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 0.5}, "", ""),
    ({}, "", ""),
    ({"temperature": float("nan")}, "sampling", "temperature: nan has no exact JSON form"),
    ({"temperature": 101.0}, "sampling", "temperature: must be a number from 0.0 to 100.0, got 101.0"),
    ({"max_tokens": 199}, "prompt_overlong", "24 prompt tokens and max_tokens 199 do not fit in max_model_len 200"),
    ({"max_tokens": 2, "min_tokens": 5}, "sampling", "min_tokens: must not exceed max_tokens 2, got 5"),
    ({"json_schema": '{"type": "integre"}'}, "sampling", "json_schema: failed to compile JSON schema"),
    ({"json_schema": LONG, "max_tokens": 20}, "sampling", "json_schema: every text of it has "),
    ({"json_schema": LONG, "max_tokens": 120, "temperature": 0.1}, "", ""),
    ({"json_schema": SCHEMA[:-1]}, "sampling", "json_schema: is no JSON"),
    ({"regex": "("}, "sampling", "regex: "),
    ({"choice": []}, "sampling", "choice: must be a tuple of non-empty texts, got ()"),
    ({"stop": ["a", None]}, "sampling", "stop: must be a tuple of non-empty strings, got ('a', None)"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("errors")
    write_tiny(there / "model")
    write_rows(there / "in.parquet", [said for said, _, _ in CASES], prompt=["Say it: " + "ab " * 9] * len(CASES))
    (there / "job.yaml").write_text(job_text(BASE, sampling=OWN))
    return there


def load(path: Path) -> tuple[Job, Preflight]:
    job, model = load_job(path, lambda done, total: None)
    return job, preflight(job.spec, job.inputs, prompt_builder(job.spec, model), 0, job.own_params)


def test_the_plan_knows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, found = load(folder / "job.yaml")
    print_preflight(job.spec, found)
    assert "rows say" in (shown := capsys.readouterr().out)
    assert all(name in shown for name in OWN)
    codes = [code for _, code, _ in CASES if code]
    assert {fault.code: fault.count for fault in found.faults} == {code: codes.count(code) for code in codes}
    assert found.max_output_tokens == 2 * (10 + 10 + 120), "each row's own, of rows that can be asked"


def test_a_job_and_its_rows_have_the_same_parameters(folder: Path) -> None:
    job, _ = load_job(folder / "job.yaml", lambda done, total: None)
    other = replace(job, params=replace(job.params, top_k=3))
    assert other.own_params.of('{"temperature":0.5}').top_k == other.own_params.of(None).top_k == 3
    with pytest.raises(RowError, match="regex: "):
        other.own_params.of('{"regex":"("}')


def test_what_rows_say_is_not_held_against_the_job(folder: Path) -> None:
    """One long answer must not refuse the others, and rows may keep more tokens than the job's top_k."""
    path = folder / "other.yaml"
    own = {name: OWN[name] for name in ("max_tokens", "top_k")}
    path.write_text(job_text(BASE | {"max_tokens": 5000}, sampling=own))
    faults = {fault.code: fault.count for fault in load(path)[1].faults}
    assert faults == {"prompt_overlong": sum("max_tokens" not in said for said, _, _ in CASES) + 1}
    path.write_text(job_text(BASE | {"max_tokens": 5000}, sampling={"top_k": OWN["top_k"]}))
    with pytest.raises(SpecError, match="5000 leaves no room for a prompt"):
        load(path)
    sizes = []
    for top_k, names in ((2, ()), (0, ()), (2, ("top_k",))):
        entry = {"sampling": {name: OWN[name] for name in names}} if names else {}
        path.write_text(job_text(BASE | {"kept_tokens": 50, "top_k": top_k}, **entry))
        sizes.append(load(path)[1].max_output_bytes)
    assert sizes[0] < sizes[1] == sizes[2]


def test_they_are_rows_of_the_run(folder: Path) -> None:
    make(folder, folder / "run")
    assert verify_run(folder / "run").ok
    rows = [row for part in sorted((folder / "run/rows").iterdir()) for row in pq.read_table(part).to_pylist()]
    plain = rows[2]["params_hash"]
    for row, (said, code, message) in zip(rows[::2], CASES, strict=True):
        assert (row["error_code"] or "") == code
        assert (row["error_message"] or "").startswith(message)
        assert (row["sampling"] is None) == (code == "sampling" or not said)
        assert (row["params_hash"] == plain) == (row["sampling"] is None)


def test_replicas_are_told_what_rows_say(folder: Path, tmp_path: Path) -> None:
    job, _ = load_job(folder / "job.yaml", lambda done, total: None)
    config = RunConfig(tmp_path / "replicas", rows_per_shard=4, replicas=2)
    run_replicas(job, ThreadFleet(job, config), config)
    run_local(job, FakeEngine(), RunConfig(tmp_path / "alone"))
    rows = [read_rows(tmp_path / name) for name in ("alone", "replicas")]
    assert rows[0]["row_hash"].equals(rows[1]["row_hash"])
    assert rows[1]["sampling"].null_count < len(rows[1])


@pytest.mark.parametrize(
    ("sampling", "fault"),
    [
        ({"temperature": "prompt"}, "prompt: cannot hold temperature of sampling: numbers wanted, it holds string"),
        ({"max_tokens": OWN["temperature"]}, "cannot hold max_tokens of sampling: integers wanted, it holds double"),
        ({"stop": "prompt"}, "prompt: cannot hold stop of sampling: lists of texts wanted, it holds string"),
        ({"regex": OWN["stop"]}, "cannot hold regex of sampling: texts wanted, it holds list"),
        ({"top_k": "its_topk"}, "no column 'its_topk'"),
    ],
)
def test_a_column_of_another_type_is_refused(folder: Path, sampling: dict[str, str], fault: str) -> None:
    path = folder / "typed.yaml"
    path.write_text(job_text(BASE, sampling=sampling))
    with pytest.raises(InputError, match=fault):
        load(path)


def test_any_number_and_any_text_will_do(folder: Path) -> None:
    odd = pa.array(["a", None]).dictionary_encode(), pa.array([1, 2], pa.uint8()), pa.nulls(2)
    bad = text_of_bytes([b"\xff", b"a"])
    write_rows(
        folder / "odd.parquet",
        [{}, {}],
        choice=pa.array([["a"], None], pa.list_(odd[0].type)),
        i=odd[1],
        x=odd[2],
        b=bad,
    )
    entry = {"choice": "choice", "temperature": "i", "max_tokens": "x"}
    for name, sampling in (("odd", entry), ("bytes", {"regex": "b"})):
        (folder / f"{name}.yaml").write_text(job_text(BASE, path="odd.parquet", sampling=sampling))
    assert load(folder / "odd.yaml")[1].faults == ()
    [fault] = load(folder / "bytes.yaml")[1].faults
    assert (fault.code, fault.count, fault.message) == ("sampling", 1, "regex holds bytes that are not UTF-8")
