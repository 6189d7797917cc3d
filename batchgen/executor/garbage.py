"""Python's search for cycles of objects, while there are very many objects and no cycle among them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 20_000  # that must have been made, and still be there, before it searches; Python's own 700 are a few rows


@contextmanager
def seldom_searched() -> Iterator[None]:
    """Inside it, the search is rarer: it would take a sixth of the time in which short rows are read and written."""
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
