"""generation_config.json is ignored unless the job asks for it, and then fills in only what the job leaves open."""

import json
from pathlib import Path

import pytest
from support.jobs import write_parquet
from support.tiny_models import write_tiny

from batchgen.errors import ModelError
from batchgen.executor.base import Job
from batchgen.loader import load_job

JOB = """\
version: 1
name: tiny
model: {{path: model, generation_config: {use}}}
numerics: portable/1
inputs: [{{path: in.parquet, columns: {{prompt: prompt}}}}]
row_key: {{column: id}}
sampling: {{top_p: 0.5}}
"""


def load(folder: Path, use: str, **config: object) -> Job:
    write_tiny(folder / "model")
    (folder / "model" / "generation_config.json").write_text(json.dumps(config))
    write_parquet(folder / "in.parquet", id=["a"], prompt=["b"])
    (folder / "job.yaml").write_text(JOB.format(use=use))
    return load_job(folder / "job.yaml", lambda done, total: None)[0]


def test_ignored_by_default(tmp_path: Path) -> None:
    params = load(tmp_path, "ignore", do_sample=True, temperature=0.3, eos_token_id=7).params
    assert (params.temperature, params.top_p) == (1.0, 0.5)


def test_fills_in_what_the_job_leaves_open(tmp_path: Path) -> None:
    job = load(tmp_path, "use", do_sample=True, temperature=0.3, top_p=0.9, top_k=11, max_new_tokens=77, eos_token_id=7)
    params = job.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.3, 0.5, 11, 77)
    assert job.spec.sampling == params, "the manifest says what was used"
    assert 7 in json.loads(job.digests["limits"])["eos_token_ids"]


def test_no_sampling_means_greedy(tmp_path: Path) -> None:
    assert load(tmp_path, "use").params.temperature == 0


def test_bad_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"generation_config.json: top_k: must be an integer"):
        load(tmp_path, "use", top_k="50")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    load(tmp_path, "ignore")
    (tmp_path / "model" / "generation_config.json").unlink()
    (tmp_path / "job.yaml").write_text(JOB.format(use="use"))
    with pytest.raises(ModelError, match=r"generation_config\.json: cannot be used: No such file or directory\n"):
        load_job(tmp_path / "job.yaml", lambda done, total: None)
