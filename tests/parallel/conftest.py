"""Eight processes for all tests of this folder."""

from collections.abc import Iterator

import pytest
from support.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with Ranks(8) as started:
        yield started
