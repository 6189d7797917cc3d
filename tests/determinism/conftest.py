"""The tiny models of these suites, an engine over each, and what each request gives when it has that to itself.

One model is dense; the other has a dense layer and one with experts, a biased router and a shared expert.
"""

from collections.abc import Iterator

import pytest
import torch
from support.forward import open_decoder
from support.model_cases import generate, load_tiny, make_engine, requests, with_limits

from batchgen.engine.engine import Engine
from batchgen.loader import LoadedModel
from batchgen.models.decoder import Decoder


@pytest.fixture(scope="session", params=["llama", "dots1"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("determinism"), request.param)


@pytest.fixture(scope="session")
def engine(model: LoadedModel) -> Engine:
    """Take `with_limits` of it: to start an engine costs more than a small test."""
    return make_engine(model)


@pytest.fixture(scope="session")
def alone(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1, prefix_cache_blocks=0), requests())


@pytest.fixture(scope="session")
def decoder(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_decoder(model, tmp_path_factory.mktemp("packed"))


@pytest.fixture(autouse=True, scope="package")
def one_torch_thread() -> Iterator[None]:
    """The planted faults compute with torch: on small tensors, and beside others, its threads only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
