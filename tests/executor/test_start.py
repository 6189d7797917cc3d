"""How an engine is sized at its start."""

import pytest
from support.model_cases import load_tiny, make_engine

from batchgen.engine.kv_cache import block_bytes
from batchgen.executor import start
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
