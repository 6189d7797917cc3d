"""Whole jobs over the fake engine: an input file, a Job, a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.fake_engine import FakeEngine
from support.jobs import job_spec

from batchgen.errors import RowError
from batchgen.executor.base import Job
from batchgen.executor.local import run_local
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import InputRow
from batchgen.places import Place

JOB_YAML = b"# a job\n"


def write_input(folder: Path, rows: int = 50, bad: Sequence[int] = ()) -> Path:
    """in.parquet: id, prompt (null at the rows `bad`), and passthrough columns of awkward types; small row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "id": [f"row-{i}" for i in range(rows)],
            "prompt": [None if i in bad else f"prompt {i}" for i in range(rows)],
            "label": pa.array([["a", "b", None][i % 3] for i in range(rows)]).dictionary_encode(),
            "meta": [{"score": i / 7, "tags": ["x"] * (i % 3)} if i % 4 else None for i in range(rows)],
        }
    )
    pq.write_table(table, folder / "in.parquet", row_group_size=17)
    return folder


def build_prompt(row: InputRow) -> list[int]:
    if row.prompt is None:
        raise RowError("prompt_null", "the prompt is null")
    return list(row.prompt.encode())


def make_job(folder: Place, build: Callable[[InputRow], Sequence[int]] = build_prompt, **sections: Any) -> Job:
    """A job over folder/in.parquet: n = 2, at most 8 tokens."""
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}, "passthrough": ["label", "meta"]}
    sampling: Mapping[str, Any] = {"n": 2, "max_tokens": 8} | sections.pop("sampling", {})
    spec = job_spec(entry, sampling=sampling, **sections)
    return Job(spec, JOB_YAML, scan_inputs(spec, folder), spec.sampling, build)


def run(job: Job, out: Place, engine: FakeEngine | None = None, rows_per_shard: int | None = 8) -> JobReport:
    engine = engine or FakeEngine()
    return run_local(job, engine, RunConfig(out, max_num_seqs=engine.max_num_seqs, rows_per_shard=rows_per_shard))


def read_rows(out: Path) -> pa.Table:
    """All rows of a run, in order."""
    return pa.concat_tables([pq.read_table(path) for path in sorted((out / "rows").glob("*.parquet"))])
