"""Files that appear whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from batchgen.errors import RunError


@contextmanager
def whole_files(*paths: Path) -> Iterator[list[IO[bytes]]]:
    """Open files that take the places of `paths` when the block ends without an error. Raises RunError."""
    drafts = [path.with_name(f".{path.name}.tmp") for path in paths]
    try:
        with ExitStack() as opened:
            yield [opened.enter_context(draft.open("wb")) for draft in drafts]
        for draft, path in zip(drafts, paths, strict=True):
            os.replace(draft, path)
    except OSError as error:
        raise RunError(f"cannot write: {error.strerror or error}", where=str(paths[0])) from error
    finally:
        for draft in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
