"""A job of a model with nine layers, whose eight rows run at once: decoding steps have eight rows."""

from pathlib import Path
from typing import Any

from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.executor.run_config import RunConfig
from batchgen.job import run_job

LAYERS, LAYER = 9, 7  # how many, and the one that tests plant faults in
ROWS = 8
PROMPT = "Row {} tells of the things that it is in"
TARGET = "k4"
JOB = """\
version: 1
name: deep
model: {path: model, max_model_len: 100}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}, passthrough: [label]}]
row_key: {column: id}
sampling: {temperature: 0.9, top_p: 0.95, max_tokens: 10, ignore_eos: true, logprobs: 2}
seed: 3
"""


def write_deep(folder: Path) -> Path:
    """The model and the input in `folder`; its last row has no prompt."""
    write_tiny(folder / "model", num_hidden_layers=LAYERS)
    prompts: list[str | None] = [PROMPT.format(i) for i in range(ROWS)]
    ids = [*(f"k{i}" for i in range(ROWS)), "none"]
    write_parquet(folder / "in.parquet", id=ids, prompt=[*prompts, None], label=list(range(ROWS + 1)))
    return folder


def make(folder: Path, name: str, job: str = JOB, **how: Any) -> Path:
    """Make runs/`name` of a job file of that name; `how` goes into its RunConfig."""
    (folder / f"{name}.yaml").write_text(job, encoding="utf-8")
    config = RunConfig(folder / "runs" / name, **({"threads": 1, "max_num_seqs": ROWS, "probe": 0.0} | how))
    run_job(folder / f"{name}.yaml", config)
    return folder / "runs" / name
