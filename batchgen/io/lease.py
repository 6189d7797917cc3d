"""A lease: the object by which one process at a time writes to a run in an object store."""

import json
import logging
import os
import platform
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import uuid4

from batchgen.errors import RunError
from batchgen.object_path import ObjectPath

LEASE = "lease.json"
SECONDS = 30.0  # that it holds without being renewed; it is renewed three times as often

_log = logging.getLogger(__name__)


class Lease:
    """Held from `take` to `close`, and renewed meanwhile by a thread.

    Whoever is not heard of for SECONDS has lost it to the first who asks. What such a process still writes is stopped
    by the conditions of its writes; where a store has none, by `check` alone.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._path, self._seconds = path, SECONDS
        self._me = {"owner": f"process {os.getpid()} on {platform.node()}", "id": uuid4().hex}
        self._version = ""
        self._until = 0.0  # by the monotonic clock
        self._is_lost = False
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @classmethod
    def take(cls, run: ObjectPath) -> Self:
        """Raises RunError while another process holds it, and for a store that refuses."""
        lease = cls(run / LEASE)
        lease._take()
        lease._thread.start()
        return lease

    def check(self) -> None:
        """Raise RunError unless this process is the one that may write."""
        with self._turn:
            if not self._is_lost and time.monotonic() >= self._until:
                self._renew()  # this process was asleep: has anyone come meanwhile?
            if not self._is_lost and time.monotonic() < self._until:
                return
        if self._is_lost:
            raise self._busy(
                "this process was not heard of for too long; what it committed is valid, and is gone on with"
            )
        raise RunError("the lease cannot be renewed", where=str(self._path), hint="see that the store can be reached")

    def close(self) -> None:
        """Let the next one in."""
        self._ended.set()
        self._thread.join()
        if not self._is_lost and time.monotonic() < self._until - self._seconds / 3:  # nobody can have taken it
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                _log.warning("%s cannot be removed; it runs out in %.0f s", self._path, self._seconds)

    def _take(self) -> None:
        data, now = self._signed()
        try:
            self._version = self._path.write_new(data)
        except FileExistsError:
            try:
                held, version = self._path.read_version()
                self._refuse_held(held)
                self._version = self._path.write_over(data, version)
            except (FileExistsError, FileNotFoundError):
                raise self._busy("it came or went in this instant: try again") from None
        self._until = now + self._seconds
        self._settle(data)

    def _settle(self, data: bytes) -> None:
        """See that a store which does not keep conditions has not let two in at once."""
        try:
            if self._path.is_conditional:
                self._version = self._path.write_new(data + b"\n")
                _log.warning("%s: this store keeps no conditions: the lease alone keeps writers apart", self._path)
        except FileExistsError:
            return
        time.sleep(min(1.0, self._seconds / 10))
        held, self._version = self._path.read_version()
        if _document(held).get("id") != self._me["id"]:
            raise self._busy("it has just begun")

    def _refuse_held(self, data: bytes) -> None:
        try:
            left = _seconds_left(data)
        except ValueError:
            hint = "remove it once no process is writing to the run"
            raise RunError("is no lease", where=str(self._path), hint=hint) from None
        if left > 0:
            owner = _document(data).get("owner")
            raise self._busy(f"{owner} holds it, and if that has died, for {left:.0f} s more")

    def _busy(self, hint: str) -> RunError:
        return RunError("another process is writing to this run", where=str(self._path.parent), hint=hint)

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            with self._turn:
                self._renew()

    def _renew(self) -> None:
        data, now = self._signed()
        try:
            self._version = self._path.write_over(data, self._version)
            self._until = now + self._seconds
        except (FileExistsError, FileNotFoundError):
            self._is_lost = True
        except OSError as error:
            _log.warning("%s cannot be renewed, and will be tried again: %s", self._path, error.strerror)

    def _signed(self) -> tuple[bytes, float]:
        """Its bytes from now on, and when that is by the monotonic clock."""
        expires = datetime.now(UTC) + timedelta(seconds=self._seconds)
        return json.dumps(self._me | {"expires": expires.isoformat()}).encode(), time.monotonic()


def is_leased(run: ObjectPath) -> bool:
    """Whether a process has said within SECONDS that it writes to the run."""
    try:
        return _seconds_left((run / LEASE).read_bytes()) > 0
    except (FileNotFoundError, ValueError):
        return False


def _seconds_left(data: bytes) -> float:
    """Raises ValueError for what is no lease."""
    try:
        expires = datetime.fromisoformat(_document(data)["expires"])
        return (expires - datetime.now(UTC)).total_seconds()
    except (KeyError, TypeError):
        raise ValueError("is no lease") from None


def _document(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
