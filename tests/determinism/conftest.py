"""The tiny model of these suites, and what each request gives when it has the engine to itself."""

import pytest
from support.model_cases import generate, load_tiny, make_engine, requests

from batchgen.loader import LoadedModel


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("determinism"))


@pytest.fixture(scope="session")
def alone(model: LoadedModel) -> dict[str, str]:
    return generate(make_engine(model, max_num_seqs=1), requests())
