"""Places: paths of this machine, and URLs of object stores."""

import os
import posixpath
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from batchgen.object_path import ObjectPath

Place: TypeAlias = Path | ObjectPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def place(text: str) -> Place:
    """The place that `text` names: a path, file:///PATH, or an URL such as s3://BUCKET/KEY.

    Raises ValueError for an URL without a bucket.
    """
    match = _URL.match(text)
    if match is None:
        return Path(text)
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError(f"{text!r} names a file of another machine: write file:///PATH")
        return Path(unquote(urlsplit(text).path))
    if not rest.strip("/") or rest.startswith("/"):
        raise ValueError(f"{text!r} names no bucket: write {scheme}://BUCKET/KEY")
    return ObjectPath(f"{scheme}://{rest.rstrip('/')}")


def join(base: Place, text: str) -> Place:
    """The place that `text` names, seen from the folder `base`. Raises ValueError as `place` does."""
    found = place(text)
    return base / text if isinstance(found, Path) and not found.is_absolute() else found


def seen_from(there: Place, base: Place) -> str:
    """What `join` needs to find `there` from `base`: relative where both can move together, else the whole name."""
    if isinstance(there, Path):
        return os.path.relpath(there, base) if isinstance(base, Path) else str(there.absolute())
    if isinstance(base, ObjectPath) and base.store == there.store:
        return posixpath.relpath(f"/{there.key}", f"/{base.key}")
    return there.url


def stamp(path: Place) -> tuple[int, int]:
    """Size, and a number of the version: when they differ, a file is no longer the one that it was."""
    if isinstance(path, ObjectPath):
        return path.stamp()
    status = path.stat()
    return status.st_size, status.st_mtime_ns
