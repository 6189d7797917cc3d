"""One process at a time in a cache folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Makes `folder` and waits until no other process is inside. A killed process leaves. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
