"""The quickstart's own model and prompts: a few rows under every way of running, and their root written down.

The root is of no machine: whoever runs this elsewhere, on another processor, must get it too.
"""

from pathlib import Path
from typing import Any

import pytest

from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import read_manifest
from batchgen.job import run_job
from batchgen.kernels.cpu.native import library

ROOT = "b19414646f0370b4cae8a649b5432b8b9d002a88982a36db291e2fe083c59b08"
CANARY = "a418142d32da02ccd75cbc46c2a9d5663716dbc303cc4affd3d24fadb65e2aa1"
EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = """\
version: 1
name: few
model: {path: MODEL, max_model_len: 1024}
numerics: portable/1
inputs:
  - path: EXAMPLES/data/prompts.parquet
    columns: {messages: messages}
    limit: 5
row_key: {column: id}
sampling: {n: 2, temperature: 0.8, top_p: 0.95, max_tokens: 12, logprobs: 1}
seed: 7
"""


def root_of(model: Path, out: Path, text: str = JOB, **how: Any) -> str:
    """Also makes sure of the canary, which is of the model and the profile alone."""
    job = out.parent / "job.yaml"
    job.write_text(text.replace("MODEL", str(model)).replace("EXAMPLES", str(EXAMPLES)))
    report = run_job(job, RunConfig(out, **how))
    assert read_manifest(out).fingerprint["canary"] == CANARY
    return report.root


@pytest.mark.model
@pytest.mark.parametrize(
    "how",
    [
        {"max_num_seqs": 10},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1000},
        {"max_num_seqs": 3, "max_num_batched_tokens": 37, "threads": 3},
        {"kv_cache_bytes": 32 * 2**20, "rows_per_shard": 2},
    ],
)
def test_the_root_is_the_recorded_one(smollm: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    assert root_of(smollm, tmp_path / "run", **how) == ROOT


@pytest.mark.model
def test_another_instruction_set(smollm: Path, tmp_path: Path) -> None:
    sets = library().instruction_sets()
    library().use(sets[-2])
    try:
        assert root_of(smollm, tmp_path / "run") == ROOT
    finally:
        library().use(sets[-1])


@pytest.mark.model
def test_counter_one_word_more_moves_it(smollm: Path, tmp_path: Path) -> None:
    assert root_of(smollm, tmp_path / "run", JOB.replace("max_tokens: 12", "max_tokens: 13")) != ROOT
