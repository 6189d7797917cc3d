"""events.jsonl: what happened while a run was made, and when. Appended to, never hashed; nothing hangs on it."""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from batchgen.errors import BatchgenError, RunError
from batchgen.io.writer import writing

EVENTS = "events.jsonl"


class EventLog:
    """The log of one process, one JSON object a line. Made by `open`.

    It is a context: an exception that leaves it is written down as the event `stop`.
    """

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file = path, file

    @classmethod
    def open(cls, run: Path) -> Self:
        """Go on with the log of the run at `run`, after the line that a kill may have torn. Raises RunError."""
        path = run / EVENTS
        with writing(path):
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            log = cls(path, file)
            try:
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":
                    log._append(b"\n")
            except BaseException:
                log.close()
                raise
        return log

    def write(self, event: str, **facts: Any) -> None:
        """Append one event; `facts` are JSON. Raises RunError when the disk is full."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "event": event} | facts, separators=(",", ":"))  # ASCII, so that any key can stand
        with writing(self._path):
            self._append(line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            with suppress(RunError):  # the error that is under way says more
                self.write("stop", reason=_reason(error))
        self.close()

    def _append(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]


def read_events(run: Path) -> list[dict[str, Any]]:
    """The events of the run at `run` in the order in which they were written; none when it has no log.

    Lines that are no JSON object, such as those torn by a kill, are skipped. Raises RunError when it cannot be read.
    """
    try:
        lines = (run / EVENTS).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read: {error.strerror}", where=str(run / EVENTS)) from error
    return [event for line in lines if isinstance(event := _parsed(line), dict)]


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _reason(error: BaseException) -> str:
    """In words that name no place: a run may be moved."""
    return error.message if isinstance(error, BatchgenError) else str(error) or type(error).__name__
