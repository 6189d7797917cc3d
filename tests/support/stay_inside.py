"""What a spawned process does, which must find it by name."""

from multiprocessing.connection import Connection
from pathlib import Path

from batchgen.models.locking import exclusive


def stay_inside(folder: Path, pipe: Connection) -> None:
    """Enter a cache folder, say so, and leave when told."""
    with exclusive(folder):
        pipe.send("inside")
        pipe.recv()
