"""Jobs of a tiny model whose rows say sampling parameters themselves, and jobs that say the same for all rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.jobs import write_parquet
from support.tiny_models import write_tiny

SCHEMA = '{"type": "object", "properties": {"a": {"enum": [true, false]}}, "required": ["a"]}'
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"temperature": 0.3, "top_p": 0.5},
    {"max_tokens": 5, "min_tokens": 5},
    {"stop": ["e", "on"], "top_k": 30, "max_tokens": 20},
    {"json_schema": SCHEMA, "max_tokens": 40},
    {"regex": "[ab]{2}"},
    {"choice": ["no", "yes"]},
    {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": -0.5, "min_p": 0.01},
    {"temperature": 100, "max_tokens": 3},
)
ROWS = 3 * len(KINDS)
BASE = {"n": 2, "temperature": 0.9, "max_tokens": 10, "logprobs": 1}
TYPES = {
    **dict.fromkeys(("temperature", "top_p", "min_p"), pa.float64()),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), pa.float32()),
    **dict.fromkeys(("top_k", "max_tokens", "min_tokens"), pa.int64()),
    **dict.fromkeys(("stop", "choice"), pa.list_(pa.string())),
    **dict.fromkeys(("json_schema", "regex"), pa.string()),
}
OWN = {name: f"its_{name}" for name in TYPES}  # parameter -> column


def job_text(params: dict[str, Any], **entry: Any) -> str:
    """A job file, in JSON, which YAML is."""
    document = {
        "version": 1,
        "name": "own",
        "model": {"path": "model", "max_model_len": 200},
        "numerics": "portable/1",
        "inputs": [{"path": "in.parquet", "columns": {"prompt": "prompt"}, **entry}],
        "row_key": {"column": "id"},
        "sampling": params,
        "seed": 5,
    }
    return json.dumps(document)


def write_rows(path: Path, said: list[dict[str, Any]], **columns: Any) -> None:
    """A row k0, k1, ... for each of `said`; `columns` stand in the place of its own."""
    table: dict[str, Any] = {
        "id": [f"k{i}" for i in range(len(said))],
        "prompt": [f"Prompt number {i}: " + "word " * (i * 7 % 29) for i in range(len(said))],
        "kind": [i % len(KINDS) for i in range(len(said))],
    }
    table |= {column: pa.array([row.get(name) for row in said], TYPES[name]) for name, column in OWN.items()}
    write_parquet(path, **table | columns)


def write_own_jobs(folder: Path) -> Path:
    """model, in.parquet, own.yaml, and kindK.yaml, the rows of one kind in a job that says it."""
    write_tiny(folder / "model")
    write_rows(folder / "in.parquet", [KINDS[i % len(KINDS)] for i in range(ROWS)])
    (folder / "own.yaml").write_text(job_text(BASE, sampling=OWN))
    for index, kind in enumerate(KINDS):
        plain = {name: value for name, value in kind.items() if name not in ("json_schema", "regex", "choice")}
        forms = {name: value for name, value in kind.items() if name not in plain}
        sampling = BASE | plain | ({"structured_outputs": forms} if forms else {})
        (folder / f"kind{index}.yaml").write_text(job_text(sampling, where=f"kind = {index}"))
    return folder
