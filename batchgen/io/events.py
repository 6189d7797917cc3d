"""events.jsonl: what happened while a run was made, and when. Appended to, never hashed; nothing hangs on it.

An object cannot be appended to: there, each process has objects of its own, events/0001.jsonl and so on.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from batchgen.errors import BatchgenError, RunError
from batchgen.io.writer import writing
from batchgen.object_path import ObjectPath
from batchgen.places import Place

EVENTS = "events.jsonl"
EVENTS_FOLDER = "events"

_OBJECT_BYTES = 256 << 10  # then the next object is begun: each is written anew with every commit
_CAN_WAIT = {"probe"}  # events that go to a store with the next one of another kind


class _Lines(Protocol):
    """Where a log's lines go."""

    def append(self, data: bytes, can_wait: bool) -> None: ...

    def close(self) -> None: ...


class _File:
    """A file that is appended to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                self.append(b"\n")
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes, can_wait: bool = False) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        os.close(self._file)


class _Objects:
    """Objects that are written anew as they grow."""

    def __init__(self, folder: ObjectPath) -> None:
        self._folder = folder
        numbers = [int(file.name[:-6]) for file in folder.iterdir() if _is_numbered(file.name)]
        self._number = max(numbers, default=0) + 1
        self._data, self._waiting = b"", False

    def append(self, data: bytes, can_wait: bool) -> None:
        self._data, self._waiting = self._data + data, True
        if not can_wait:
            self.close()

    def close(self) -> None:
        """Write what is still to be written."""
        if self._waiting:
            (self._folder / f"{self._number:04}.jsonl").write(self._data)
            self._waiting = False
            if len(self._data) >= _OBJECT_BYTES:
                self._number, self._data = self._number + 1, b""


class EventLog:
    """The log of one process, one JSON object a line. Made by `open`.

    It is a context: an exception that leaves it is written down as the event `stop`.
    """

    def __init__(self, path: Place, lines: _Lines) -> None:
        self._path, self._lines = path, lines

    @classmethod
    def open(cls, run: Place) -> Self:
        """Go on with the log of the run at `run`, after the line that a kill may have torn. Raises RunError."""
        if isinstance(run, Path):
            with writing(run / EVENTS):
                return cls(run / EVENTS, _File(run / EVENTS))
        with writing(run / EVENTS_FOLDER):
            return cls(run / EVENTS_FOLDER, _Objects(run / EVENTS_FOLDER))

    def write(self, event: str, **facts: Any) -> None:
        """Append one event; `facts` are JSON. Raises RunError when the disk is full."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "event": event} | facts, separators=(",", ":"))  # ASCII, so that any key can stand
        with writing(self._path):
            self._lines.append(line.encode() + b"\n", event in _CAN_WAIT)

    def close(self) -> None:
        with writing(self._path):
            self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(RunError) if error is not None else nullcontext():  # the error that is under way says more
            if error is not None:
                self.write("stop", reason=_reason(error))
            self.close()


def read_events(run: Place) -> list[dict[str, Any]]:
    """The events of the run at `run` in the order in which they were written; none when it has no log.

    Lines that are no JSON object, such as those torn by a kill, are skipped. Raises RunError when it cannot be read.
    """
    folder = run / EVENTS_FOLDER
    with _reading(folder):
        objects = sorted(file.name for file in folder.iterdir() if _is_numbered(file.name)) if folder.is_dir() else []
    logs = [_read(run / EVENTS), [event for name in objects for event in _read(folder / name)]]
    logs.sort(key=lambda log: str(log[0].get("at")) if log else "")  # a run that was moved may have both
    return [event for log in logs for event in log]


def _read(path: Place) -> list[dict[str, Any]]:
    with _reading(path):
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
    return [event for line in lines if isinstance(event := _parsed(line), dict)]


@contextmanager
def _reading(path: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot read: {error.strerror}", where=str(path)) from error


def _is_numbered(name: str) -> bool:
    return re.fullmatch(r"\d{4,}\.jsonl", name) is not None


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _reason(error: BaseException) -> str:
    """In words that name no place: a run may be moved."""
    return error.message if isinstance(error, BatchgenError) else str(error) or type(error).__name__
