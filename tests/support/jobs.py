"""Small jobs for tests: a spec from a few keys, Parquet files that hold what Arrow would not make by itself."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.spec import JobSpec


def job_spec(*inputs: dict[str, Any], **sections: Any) -> JobSpec:
    """A valid spec; `inputs` default to in.parquet with a column `prompt`, keys come from a column `id`."""
    document: dict[str, Any] = {
        "version": 1,
        "name": "test",
        "model": {"path": "model"},
        "numerics": "portable/1",
        "inputs": inputs or [{"path": "in.parquet", "columns": {"prompt": "prompt"}}],
        "row_key": {"column": "id"},
    }
    return JobSpec.model_validate_json(json.dumps(document | sections))


def write_parquet(path: Path, row_group_size: int | None = None, **columns: Any) -> Path:
    """Columns are lists or Arrow arrays."""
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def text_of_bytes(values: Sequence[bytes]) -> pa.Array:
    """A string column of these bytes, valid UTF-8 or not."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())
