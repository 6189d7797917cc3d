"""What a child does to itself: it dies right before a file operation or within a write, or its disk is full."""

import builtins
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import batchgen.io.writer as writer

INSTRUMENTS = ("", "before", "inside", "enospc", "limit")


def install(instrument: str, count: int, out: str) -> None:
    """before: SIGKILL before the count-th file operation below `out`; inside: SIGKILL within the count-th write, half
    done; enospc: from the count-th write on, half of it and then an error; limit: no file grows past `count` bytes."""
    assert instrument in INSTRUMENTS
    if instrument == "before":
        _kill_before(count, out)
    elif instrument == "inside":
        _at_write(_Countdown(count, _die))
    elif instrument == "enospc":
        _at_write(_Countdown(count, _no_space))
    elif instrument == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Countdown:
    """Acts at the count-th call and at every later one."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        self._left, self._act = count, act

    def __call__(self) -> bool:
        """Is it time?"""
        self._left -= 1
        return self._left <= 0

    def act(self) -> None:
        self._act()


def _kill_before(count: int, out: str) -> None:
    """Audit events come before the call that they name; fsync has none, so it is wrapped."""
    left = _Countdown(count, _die)
    events = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in events and str(args[0]).startswith(out) and left():
            left.act()

    exact = os.fsync

    def fsync(file: Any) -> None:
        if left():
            left.act()
        exact(file)

    vars(os)["fsync"] = fsync
    sys.addaudithook(hook)


def _at_write(left: _Countdown) -> None:
    """Files that batchgen.io.writer opens, and os.write, which the event log uses."""

    def torn(write: Callable[[Any], int], data: Any) -> int:
        if not left():
            return write(data)
        view = memoryview(data)
        write(view[: len(view) // 2])
        left.act()
        return len(view)

    def open_torn(path: Any, mode: str) -> Any:
        file = builtins.open(path, mode, buffering=0)  # noqa: SIM115  its user closes it
        return _Torn(file, lambda data: torn(file.write, data))

    exact = os.write

    def os_write(number: int, data: Any) -> int:
        return exact(number, data) if number in (1, 2) else torn(lambda part: exact(number, part), data)

    vars(writer)["open"] = open_torn
    vars(os)["write"] = os_write


class _Torn:
    """A file whose writes go through a function."""

    def __init__(self, file: Any, write: Callable[[Any], int]) -> None:
        self._file, self.write = file, write

    def __enter__(self) -> "_Torn":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
