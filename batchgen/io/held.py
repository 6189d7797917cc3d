"""Is a process at work on a run? Asked without touching its lock: a reader must never be in a writer's way."""

import os
from pathlib import Path

from batchgen.io.lease import is_leased
from batchgen.object_path import ObjectPath
from batchgen.places import Place

_LOCKS = Path("/proc/locks")


def is_held(run: Place, locks: Path = _LOCKS) -> bool:
    """Whether a process that can be seen from here holds the run at `run`, by the kernel's table of locks.

    True is certain. False is not: a writer on another machine or in another container is not in this table, and some
    systems have none. To try the lock instead would let a run that starts in that instant find its folder taken.
    In an object store, its lease tells.
    """
    if isinstance(run, ObjectPath):
        return is_leased(run)
    try:
        status = os.stat(run)
        lines = locks.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return False
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(_is_writer(line.split(), place) for line in lines)


def _is_writer(fields: list[str], place: str) -> bool:
    """1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF; of one who waits for it there is an arrow after the number."""
    return fields[1:2] == ["FLOCK"] and "WRITE" in fields and place in fields
