"""The example orders are what their script makes, and the job that reads them gives JSON of its schema."""

import json
import shutil
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
from support.example_scripts import EXAMPLES

from batchgen.executor.run_config import RunConfig
from batchgen.job import run_job
from batchgen.spec import load_spec

ORDERS = EXAMPLES / "data" / "orders.parquet"


def test_the_file_is_what_the_script_makes(tmp_path: Path) -> None:
    script = shutil.copy(EXAMPLES / "data" / "make_orders.py", tmp_path)
    space: dict[str, object] = {"__name__": "make_orders", "__file__": str(script)}
    exec(compile(Path(script).read_text(encoding="utf-8"), str(script), "exec"), space)
    build = space["build"]
    assert callable(build)
    assert build(tmp_path / "again.parquet") == 300
    assert pq.read_table(tmp_path / "again.parquet").equals(pq.read_table(ORDERS))


def test_what_is_in_a_message_stands_in_it() -> None:
    rows = pq.read_table(ORDERS).to_pylist()
    for row in rows:
        text = row["messages"][-1]["content"]
        assert all(str(row[name]) in text for name in ("customer", "item", "quantity", "day"))
    assert len({row["messages"][-1]["content"] for row in rows}) == len(rows)


def test_the_job_reads_all_of_it() -> None:
    """What the schema allows is what there is to be found."""
    outputs = load_spec(EXAMPLES.parent / "jobs" / "extract.yaml").sampling.structured_outputs
    assert outputs is not None
    assert outputs.json_schema is not None
    schema = json.loads(outputs.json_schema)
    for row in pq.read_table(ORDERS).to_pylist():
        jsonschema.validate({name: row[name] for name in schema["properties"]}, schema)


@pytest.mark.model
@pytest.mark.slow
def test_every_answer_of_the_job_is_valid(smollm: Path, tmp_path: Path) -> None:
    for folder in ("jobs", "examples/data"):
        shutil.copytree(EXAMPLES.parent / folder, tmp_path / folder)
    job = tmp_path / "jobs" / "extract.yaml"
    job.write_text(job.read_text(encoding="utf-8").replace("limit: 48", "limit: 2"), encoding="utf-8")
    assert run_job(job, RunConfig(tmp_path / "run")).counts.stop == 2
    outputs = load_spec(job).sampling.structured_outputs
    assert outputs is not None
    for row in pq.read_table(tmp_path / "run" / "rows" / "part-00000.parquet").to_pylist():
        answer = json.loads(row["text"])
        jsonschema.validate(answer, json.loads(outputs.json_schema or ""))
        assert row["text"] == json.dumps(answer, ensure_ascii=False), "written as Python writes it"
        assert answer["day"] == row["day"], "which even a small model can copy"
