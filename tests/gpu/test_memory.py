"""Too little memory on a real GPU: said at the start, with what to lower."""

from collections.abc import Iterator

import pytest
import torch
from support.model_cases import load_tiny, make_engine
from support.on_gpu import GPU

from batchgen.errors import EngineError
from batchgen.executor import start
from batchgen.kernels.device import TENSOR_CORES
from batchgen.loader import LoadedModel

pytestmark = GPU


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def little() -> Iterator[None]:
    """Of the GPU's memory, this process may have 40 MB more than it has."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 40e6) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("numerics", ["portable/1", TENSOR_CORES])
def test_a_step_that_does_not_fit(model: LoadedModel, numerics: str) -> None:
    with pytest.raises(EngineError, match=r"no memory left for") as caught:
        make_engine(model, numerics=numerics, max_num_batched_tokens=2_000_000, max_num_seqs=4)
    assert "lower --max-num-batched-tokens" in str(caught.value.hint)


@pytest.mark.usefixtures("little")
def test_a_cache_that_does_not_fit(model: LoadedModel) -> None:
    with pytest.raises(EngineError, match="no memory left for the KV cache"):
        make_engine(model, num_blocks=1_000_000, max_num_seqs=500_000)


def test_one_sequence_that_does_not_fit(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "free_bytes", lambda device: 1000)
    with pytest.raises(EngineError, match=r"one sequence of max_model_len .* GiB of KV cache") as caught:
        make_engine(model)
    assert "lower model.max_model_len" in str(caught.value.hint)


def test_it_starts_when_there_is_room(model: LoadedModel) -> None:
    engine = make_engine(model, max_num_batched_tokens=4096)
    assert engine.limits.max_num_batched_tokens == 4096
