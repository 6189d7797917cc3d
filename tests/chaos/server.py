"""The parent's side of child.py: a server process, and the children that it forks."""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos import child

PATIENCE = 240  # seconds until a child counts as hanging; threads beyond a busy machine's cores crawl


class Server:
    """One child at a time, forked from a process in which all imports are done."""

    def __init__(self, engine: str, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, child.__file__, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environment or {})},
            text=True,
        )
        assert "ready" in self._read()
        self._pid: int | None = None

    def start(self, order: child.Order) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        self._pid = self._read()["pid"]

    def signal(self, number: signal.Signals) -> None:
        """To the child; nothing when it has ended. Its parent has reaped it then, so the id may be free."""
        if self._pid is not None and not self.ended(0):
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def ended(self, seconds: float) -> bool:
        """Does the child end within that time?"""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def wait(self) -> int:
        """The child's exit status, negative for a signal."""
        status: int = self._read()["status"]
        self._pid = None
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.signal(signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        if not self.ended(PATIENCE):
            raise TimeoutError(f"a child did not answer within {PATIENCE} s")
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def text_of(log: Path) -> str:
    """What a child wrote to its standard output and error."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
