"""What can be refused when a job is loaded is refused there, under the key of the job file that is at fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jobs import write_parquet
from support.tiny_models import tiny_config

from batchgen.errors import BatchgenError, InputError, SpecError
from batchgen.executor.base import Job
from batchgen.loader import load_job, naming

JOB = """\
version: 1
name: tiny
model: {path: MODEL}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}}]
row_key: {column: id}
sampling: {max_tokens: 6}
"""
VOCAB_SIZE: int = tiny_config("llama")["vocab_size"]

Load = Callable[..., Job]


@pytest.fixture
def load(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads JOB with `old` replaced by `new`; the job file is job.yaml."""
    monkeypatch.chdir(tmp_path)

    def load(old: str = "", new: str = "", **columns: Any) -> Job:
        assert old in JOB
        data: dict[str, Any] = {"id": [1, 2], "prompt": ["a", "b"], "seed": [1, 2]}
        write_parquet(Path("in.parquet"), **(data | columns))
        Path("job.yaml").write_text(JOB.replace(old, new).replace("MODEL", str(tiny_llama)))
        return load_job(Path("job.yaml"), lambda done, total: None)[0]

    return load


def test_the_last_token_id_is_one(load: Load) -> None:
    last = VOCAB_SIZE - 1
    job = load("max_tokens: 6", f"stop_token_ids: [{last}], logit_bias: {{{last}: 1}}, max_tokens: 511")
    assert job.params.stop_token_ids == (last,)


ENTRY = "columns: {prompt: prompt}"
FAULTS = [
    ("max_tokens: 6", f"logit_bias: {{{VOCAB_SIZE}: 1}}", "sampling.logit_bias", f"{VOCAB_SIZE} is not one of the"),
    ("max_tokens: 6", f"stop_token_ids: [1, {VOCAB_SIZE}]", "sampling.stop_token_ids", "token ids of the model"),
    ("max_tokens: 6", "max_tokens: 512", "sampling.max_tokens", "leaves no room for a prompt in max_model_len 512"),
    ("MODEL}", "MODEL, max_model_len: 6}", "sampling.max_tokens", "leaves no room for a prompt in max_model_len 6"),
    ("MODEL}", "MODEL, max_model_len: 513}", "model.max_model_len", "the model takes 512"),
    ("MODEL}", "MODEL, chat_template_kwargs: {tools: 1}}", "model.chat_template_kwargs", "comes from the row"),
    (ENTRY, f"{ENTRY}, where: 'idd = 1'", "inputs[0].where", "no column 'idd'"),
    (ENTRY, f"{ENTRY}, where: 'id = 7'", "inputs", "no row is left"),
    (ENTRY, f"{ENTRY}, passthrough: [seed]", "inputs[0].passthrough", "'seed' is the name of an output column"),
    ("in.parquet", "no*.parquet", "inputs[0].path", "no file matches"),
]


@pytest.mark.parametrize(("old", "new", "key", "message"), FAULTS)
def test_a_fault_is_told_by_file_and_key(load: Load, old: str, new: str, key: str, message: str) -> None:
    with pytest.raises(BatchgenError) as caught:
        load(old, new)
    assert isinstance(caught.value, SpecError | InputError)
    assert caught.value.where == f"job.yaml: {key}"
    assert message in caught.value.message


def test_a_fault_in_the_data_is_told_by_the_data(load: Load) -> None:
    with pytest.raises(InputError) as caught:
        load(id=[1, 1])
    assert caught.value.where == "in.parquet row 1"


@pytest.mark.parametrize("where", ["inputs.parquet", "inputs/a.parquet: prompt", "inputs[0].parquet row 3"])
def test_input_files_may_be_called_inputs(where: str) -> None:
    with pytest.raises(InputError) as caught, naming(Path("job.yaml")):
        raise InputError("is torn", where=where)
    assert caught.value.where == where
