"""A run in an object store, as its one writer writes it: no renames, no locks, but a lease and conditional writes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from batchgen.errors import RunError
from batchgen.io.lease import LEASE, Lease
from batchgen.io.manifest import FILE_NAME, Manifest, parse_manifest
from batchgen.io.writer import writing
from batchgen.object_path import ObjectPath

_log = logging.getLogger(__name__)


class ObjectStore:
    """`batchgen.io.run_folder.Store` for an ObjectPath.

    An object appears whole, by one request. A part is only ever put where there is none, and the manifest only over the
    version that was read or written last: whoever has lost the lease without knowing it is refused by the store.
    """

    own: tuple[str, ...] = (LEASE,)

    def __init__(self, run: ObjectPath, lease: Lease) -> None:
        self._run, self._lease = run, lease
        self._version: str | None = None  # of the manifest

    @classmethod
    def open(cls, run: ObjectPath) -> Self:
        """Raises RunError: an object and no folder, held by another process, a store that refuses."""
        with writing(run):
            if run.key and run.is_file():
                raise RunError("is an object, and a run is a folder", where=str(run))
            return cls(run, Lease.take(run))

    def read_manifest(self) -> Manifest | None:
        path = self._run / FILE_NAME
        with writing(path):
            try:
                data, self._version = path.read_version()
            except FileNotFoundError:
                return None
        return parse_manifest(data, path)

    def write_manifest(self, manifest: Manifest) -> None:
        path, data = self._run / FILE_NAME, manifest.to_json().encode()
        self._lease.check()
        with writing(path), self._alone():
            self._version = path.write_over(data, self._version) if self._version else path.write_new(data)

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._lease.check()
        with writing(self._run / name):
            (self._run / name).write(bytes(data))

    def add(self, name: str, data: bytes | memoryview) -> None:
        self._lease.check()
        with writing(self._run / name), self._alone():
            (self._run / name).write_new(bytes(data))

    def make_folder(self, name: str) -> None:
        """There are none."""

    def hide(self, folder: str, names: list[str]) -> None:
        for name in names:
            self._lease.check()
            path = self._run / folder / name
            with writing(path):
                path.rename(path.with_name(f".{name}.untrusted"))

    def clean(self) -> None:
        with writing(self._run):
            if count := self._run.abort_uploads():
                _log.info("%s: %d uploads that were never completed are removed", self._run, count)

    def close(self) -> None:
        self._lease.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A condition that does not hold: someone else has written."""
        try:
            yield
        except FileExistsError as error:
            raise RunError(
                "another process is writing to this run",
                where=str(self._run),
                hint=f"it has written {error.filename}; what is committed is valid",
            ) from None
