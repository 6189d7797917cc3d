"""Drawn weights: the same bytes everywhere, a model that runs, and a run that says what it is."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from support.jobs import write_parquet
from support.tiny_models import tiny_config, tiny_tokenizer, write_tiny

from batchgen.cli import cli
from batchgen.errors import ModelError
from batchgen.executor.start import open_weights
from batchgen.models.device_weights import DeviceWeights
from batchgen.models.dummy import dummy_digest, open_dummy
from batchgen.models.fused import fused

JOB = """\
version: 1
name: drawn
model: {path: model, max_model_len: 64, load_format: dummy}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}}]
row_key: {derive: file_and_row}
sampling: {temperature: 0.9, max_tokens: 8, ignore_eos: true}
"""
# Of the tiny Llama, wherever it is drawn.
DIGEST = "b5a8750a6de1ab020b8894a321d5e11829bebb0aeb9ea71f162deee1e67c8ee9"


def shape(folder: Path, family: str = "llama") -> Path:
    """A model folder without weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(family)))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def told(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.mark.parametrize("family", ["qwen2", "dots1"])  # every kind of tensor: biases, norms of heads, routers
def test_tensors_are_those_of_the_shape(family: str, tmp_path: Path) -> None:
    model = open_dummy(shape(tmp_path, family))
    for name in model.names():
        tensor = model.tensor(name).float()
        if tensor.ndim == 2:
            deviation = tensor.std() * tensor.shape[1] ** 0.5
            assert abs(deviation - (3 if "embed" in name or "lm_head" in name else 1)) < 0.1, name
            assert abs(tensor.mean()) < 0.02
        else:
            assert (tensor - float("norm" in name)).abs().max() <= 0.105, name
    assert torch.equal(model.tensor(name), open_dummy(tmp_path).tensor(name))


def test_the_bytes_are_written_down(tmp_path: Path) -> None:
    model = open_dummy(shape(tmp_path))
    assert model.weights_digest() == DIGEST
    up, down = (model.tensor(f"model.layers.0.mlp.{part}_proj.weight") for part in ("up", "gate"))
    assert not torch.equal(up, down), "each tensor is drawn for itself"


def test_on_a_device_and_packed_they_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    folder = shape(tmp_path / "model", "dots1")
    digests: dict[str, str] = {}
    plain = dict(fused(open_dummy(folder), digests, lambda weight: weight))
    packed = open_weights(folder, load_format="dummy")
    loaded = DeviceWeights.load(open_dummy(folder), torch.device("cpu"))
    assert packed.weights_digest == f"dummy {loaded.weights_digest}"
    assert all(torch.equal(plain[name], loaded[name]) for name in plain)
    again = open_weights(folder, load_format="dummy")
    assert again.weights_digest == packed.weights_digest, "from the cache"
    before = dummy_digest(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    assert dummy_digest(folder) != before
    with pytest.raises(ModelError, match="there is neither"):
        open_weights(folder)


def test_a_run_says_that_its_weights_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    shape(tmp_path / "model")
    write_parquet(tmp_path / "in.parquet", prompt=["one", "two three"])
    (tmp_path / "job.yaml").write_text(JOB)
    run = told("run", tmp_path / "job.yaml", "--out", tmp_path / "run", "--threads", 1)
    assert run.exit_code == 0, run.output
    assert "the weights are drawn (model.load_format: dummy)" in run.stderr
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["fingerprint"]["weights_digest"] == f"dummy {DIGEST}"
    assert manifest["spec"]["model"]["load_format"] == "dummy"
    texts = pq.read_table(tmp_path / "run" / "rows")["token_ids"].to_pylist()
    assert len(set(texts[0])) > 2, "the logits are spread"
    assert told("replay", tmp_path / "run", "--all").exit_code == 0
    write_tiny(tmp_path / "model")
    (tmp_path / "job.yaml").write_text(JOB.replace(", load_format: dummy", ""))
    assert told("run", tmp_path / "job.yaml", "--out", tmp_path / "run").exit_code == 7, "real weights are another run"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("path: model", "path: model.gguf", "model.load_format: dummy takes a folder with config.json"),
        ("path: model", "path: in.parquet", "model.load_format: dummy takes a folder with config.json"),
        ("path: model", "path: .", "there is no config.json"),
        ("dummy", "dumy", "model.load_format"),
    ],
)
def test_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    shape(tmp_path / "model")
    write_parquet(tmp_path / "in.parquet", prompt=["one"])
    (tmp_path / "job.yaml").write_text(JOB.replace(old, new))
    said = told("run", tmp_path / "job.yaml", "--out", tmp_path / "run")
    assert says in said.stderr, said.stderr
    assert not (tmp_path / "run").exists()
