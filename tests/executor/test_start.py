"""How an engine is sized at its start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.jobs import job_spec
from support.model_cases import load_tiny, make_engine
from support.sampling import sample_rows

from batchgen.engine.kv_cache import block_bytes
from batchgen.errors import EngineError
from batchgen.executor import start
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import open_weights, start_engine
from batchgen.kernels.cuda.sampler import upload
from batchgen.kernels.sample_rows import Kept
from batchgen.loader import LoadedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("start"))


@pytest.mark.parametrize(("num_blocks", "kept"), [(5, 1), (8, 2), (102, 25)])
def test_a_quarter_of_the_pool_keeps_its_content(model: LoadedModel, num_blocks: int, kept: int) -> None:
    engine = make_engine(model, num_blocks=num_blocks)
    assert (engine.limits.num_blocks, engine.limits.prefix_cache_blocks) == (num_blocks, kept)


def test_no_more_memory_is_kept_than_is_meant_to_be(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start._PREFIX_CACHE_BYTES == 256 * 2**20
    monkeypatch.setattr(start, "_PREFIX_CACHE_BYTES", 7 * block_bytes(model.config) + 1)
    assert make_engine(model, num_blocks=100).limits.prefix_cache_blocks == 7


def test_without_a_cache_nothing_is_kept(model: LoadedModel) -> None:
    assert make_engine(model, prefix_cache=False).limits.prefix_cache_blocks == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kept_tokens": 9}, "sampling.kept_tokens: a GPU does not tell which tokens its filters keep"),
        ({"routed_experts": True}, "sampling.routed_experts: a GPU does not tell which experts it chose"),
    ],
)
def test_columns_that_a_gpu_cannot_tell_are_refused(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(start, "choose", lambda *wanted: torch.device("cuda"))
    spec = job_spec(model={"path": "unused"}, sampling=asked)
    with pytest.raises(EngineError, match=message):
        start_engine(spec, model, RunConfig(Path("unused")), open_weights(model.path))
    rows = replace(sample_rows(1), kept=Kept.empty([1]))
    with pytest.raises(EngineError, match="kept_tokens: a GPU's sampler does not tell"):
        upload(rows, 3, torch.device("cuda"))
