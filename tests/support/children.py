"""Child processes of tests."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child_of(command: Sequence[str], **how: Any) -> Iterator["subprocess.Popen[str]"]:
    """A child that is killed when the block fails: Popen would wait for it, perhaps for ever, and hide the failure."""
    with subprocess.Popen(command, text=True, **how) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
