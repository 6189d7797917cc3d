"""The search for cycles is put back as it was, whatever happens."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from batchgen.executor.garbage import seldom_searched


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("before", [(700, 10, 10), (50_000, 5, 5), (0, 10, 10)])
def test_it_is_rarer_inside_and_as_before_outside(before: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    inside = []

    def fail() -> None:
        with seldom_searched():
            inside.append(gc.get_threshold())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert inside[0] == (max(before[0], 20_000) if before[0] else 0, *before[1:])
    assert gc.get_threshold() == before


def test_cycles_are_still_found() -> None:
    class Node:
        pass

    gc.set_threshold(700, 10, 10)
    with seldom_searched():
        node = Node()
        node.itself = node  # type: ignore[attr-defined]
        seen = weakref.ref(node)
        del node
        kept = [[] for _ in range(50_000)]  # type: ignore[var-annotated]
    assert kept
    assert seen() is None
