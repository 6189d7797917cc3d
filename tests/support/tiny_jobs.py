"""Whole jobs of a tiny real model, with a prompt that fails, and their samples as they lie on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.executor.base import Progress
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig

ROWS = 23
JOB = """\
version: 1
name: tiny
model: {{path: model, max_model_len: 200}}
numerics: portable/1
inputs: [{{path: in.parquet, columns: {{prompt: prompt}}, passthrough: [label]}}]
row_key: {{column: id}}
sampling: {{n: {n}, temperature: 0.9, top_p: 0.95, max_tokens: 12, logprobs: 2}}
seed: 11
"""


def write_tiny_jobs(folder: Path, samples: tuple[int, ...] = (2,)) -> Path:
    """model, in.parquet, job.yaml (n = 2), and nK.yaml for each K of `samples`."""
    write_tiny(folder / "model")
    prompts: list[str | None] = [f"Prompt number {i}: " + "word " * (i * 7 % 29) for i in range(ROWS)]
    prompts[5] = None
    write_parquet(folder / "in.parquet", id=[f"k{i}" for i in range(ROWS)], prompt=prompts, label=list(range(ROWS)))
    (folder / "job.yaml").write_text(JOB.format(n=2))
    for n in samples:
        (folder / f"n{n}.yaml").write_text(JOB.format(n=n))
    return folder


def nothing(progress: Progress) -> None:
    """Hears of progress and lets it pass."""


def make(
    folder: Path, out: Path, job: str = "job", on_progress: Callable[[Progress], None] = nothing, **how: Any
) -> JobReport:
    """Run folder/JOB.yaml in this process; `how` are fields of RunConfig."""
    from batchgen.job import run_job  # torch: not for those who only write the files

    config = RunConfig(out, **({"threads": 1, "rows_per_shard": 5} | how))
    return run_job(folder / f"{job}.yaml", config, on_progress=on_progress)


def samples_of(out: Path) -> dict[tuple[str, int], str]:
    """row_hash by (row_key, sample_index)."""
    return {
        (row["row_key"], row["sample_index"]): row["row_hash"]
        for part in sorted((out / "rows").glob("part-*.parquet"))
        for row in pq.read_table(part, columns=["row_key", "sample_index", "row_hash"]).to_pylist()
    }
