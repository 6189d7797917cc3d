"""ObjectPath: a place in an object store, with as much of pathlib's ways as a run or an input needs. By fsspec."""

import errno
import hashlib
import io
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from batchgen.errors import RunError

_DENIED = ("AccessDenied", "Forbidden", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_UNMET = ("PreconditionFailed", "ConditionalRequestConflict")  # of a conditional write
_TRIES = 10  # to read a small object that others write
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "updated", "LastModified", "created")  # what stores tell of a version


class StoreError(RunError, OSError):
    """What a store refuses or cannot do: an OSError to whoever handles those, and a RunError to everyone else."""

    def __init__(self, message: str, *, where: str, hint: str = "") -> None:
        RunError.__init__(self, message, where=where, hint=hint)
        self.errno, self.strerror = errno.EIO, message


class Changed(StoreError):
    """An object is no longer the version that is being read."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """An URL below a bucket, such as s3://bucket/runs/a, without a slash at its end.

    Nothing is remembered of what a store said: each question goes to the store. Methods with a name of pathlib's do
    what it does there. They raise FileNotFoundError for what is not there, and StoreError.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "ObjectPath":
        """`name` is relative; `..` goes up, at most to the bucket."""
        start, _, key = self.url.partition("://")
        bucket, _, key = key.partition("/")
        key = posixpath.normpath(f"/{key}/{name}").strip("/")
        return ObjectPath(f"{start}://{bucket}/{key}".rstrip("/"))

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        return self / ".."

    @property
    def store(self) -> str:
        """The scheme and the bucket: s3://bucket."""
        return "/".join(self.url.split("/")[:3])

    @property
    def key(self) -> str:
        """What is below the bucket."""
        return self.url[len(self.store) :].strip("/")

    @property
    def file_system(self) -> Any:
        """Of fsspec; for those who can read by one."""
        return self._ask(lambda fs, path: fs)

    def resolve(self) -> "ObjectPath":
        """Itself: it has no other name."""
        return self

    def with_name(self, name: str) -> "ObjectPath":
        return self.parent / name

    def exists(self) -> bool:
        return bool(self._ask(lambda fs, path: fs.exists(path)))

    def is_file(self) -> bool:
        return bool(self._ask(lambda fs, path: fs.isfile(path)))

    def is_dir(self) -> bool:
        """Whether there is something below it."""
        return bool(self._ask(lambda fs, path: fs.isdir(path)))

    def iterdir(self) -> Iterator["ObjectPath"]:
        try:
            found = self._ask(lambda fs, path: fs.ls(path, detail=False))
        except FileNotFoundError:
            return
        names = {name.rstrip("/").rpartition("/")[2] for name in found if name.strip("/") != self._path}
        yield from (self / name for name in sorted(names))

    def matching(self, pattern: str) -> list[str]:
        """The files below this that match, seen from here; `*` passes over names that begin with a dot."""
        found = self._ask(lambda fs, path: fs.glob(f"{path}/{pattern}", detail=True))
        below = [
            name.strip("/")[len(self._path) :].strip("/") for name, info in found.items() if info["type"] == "file"
        ]
        dotted = any(part.startswith(".") for part in pattern.split("/"))
        return [name for name in below if dotted or not any(part.startswith(".") for part in name.split("/"))]

    def read_bytes(self) -> bytes:
        return bytes(self._ask(lambda fs, path: fs.cat_file(path)))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> "ObjectFile":
        """For reading, each read a request for exactly its bytes, all of the version that was there at first."""
        assert mode == "rb"
        return ObjectFile(self)

    def stamp(self) -> tuple[int, int]:
        """The size, and a number that is another for another version."""
        info = self._ask(lambda fs, path: fs.info(path))
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)
        version = next((str(info[name]) for name in _STAMPS if info.get(name)), "")
        return int(info["size"]), int.from_bytes(hashlib.sha256(version.encode()).digest()[:8])

    def read_version(self) -> tuple[bytes, str]:
        """The bytes of an object, and what `write_over` needs to replace these and no others."""
        for _ in range(_TRIES):
            with suppress(Changed), self.open() as file:
                data = file.readall()
                return data, file.version or _digest(data)
        raise Changed("changes all the time", where=self.url)

    def write(self, data: bytes) -> None:
        """Replace the object, if there is one: whoever reads gets the old bytes or the new."""
        self._ask(lambda fs, path: fs.pipe_file(path, data))

    def write_new(self, data: bytes) -> str:
        """The same where there is nothing yet; its version. Raises FileExistsError where there is something else."""
        return self._write(data, lambda fs, path: fs.pipe_file(path, data, mode="create"))

    def write_over(self, data: bytes, version: str) -> str:
        """Replace that version; the new one. Raises FileExistsError when another is there, or none.

        A store other than s3:// is only asked before: there, two who write at the same instant are not told apart.
        """
        if not self.is_conditional:
            if not self.exists() or self.read_version()[1] != version:
                raise FileExistsError(errno.EEXIST, "another has written it", self.url)
            self.write(data)
            return _digest(data)

        def put(fs: Any, path: str) -> Any:
            return fs.call_s3("put_object", Bucket=self._bucket, Key=self.key, Body=data, IfMatch=version)

        return self._write(data, put)

    @property
    def is_conditional(self) -> bool:
        """Whether the store has a condition for replacing a version."""
        return self.url.startswith("s3")

    def rename(self, target: "ObjectPath") -> None:
        """A copy, and then the removal of what was copied: no reader of `target` sees less than all of it."""
        self._ask(lambda fs, path: fs.cp_file(path, target._path))
        self.unlink()

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._ask(lambda fs, path: fs.rm_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def abort_uploads(self) -> int:
        """Drop what uploads in parts below this have left that were never completed; no reader sees those. How many."""
        if not self.is_conditional:
            return 0

        def abort(fs: Any, _: str) -> int:
            where = {"Bucket": self._bucket}
            found = fs.call_s3("list_multipart_uploads", Prefix=f"{self.key}/", **where).get("Uploads", [])
            for upload in found:
                fs.call_s3("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"], **where)
            return len(found)

        return int(self._ask(abort))

    @property
    def _bucket(self) -> str:
        return self.store.partition("://")[2]

    @property
    def _path(self) -> str:
        """As the store's own file system calls it."""
        return str(_file_system(self.url, os.getpid())._strip_protocol(self.url)).strip("/")

    def _write(self, data: bytes, put: Callable[[Any, str], Any]) -> str:
        """A write under a condition. One whose first try went through unheard has met it."""
        try:
            answer = self._ask(put)
        except FileExistsError:
            there, version = self.read_version()
            if there != data:
                raise
            return version
        found = answer.get("ETag") if isinstance(answer, dict) else None
        return str(found) if found else self.read_version()[1]

    def _ask(self, question: Callable[[Any, str], Any]) -> Any:
        with talking(self.url):
            return question(_file_system(self.url, os.getpid()), self._path)


class ObjectFile(io.RawIOBase):
    """An object that is read from, wherever one likes."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._url = path.url
        self._file = path._ask(lambda fs, path: fs.open(path, "rb", cache_type="none"))

    @property
    def version(self) -> str:
        """As the store calls it; empty where it does not."""
        return str((getattr(self._file, "details", None) or {}).get("ETag", ""))

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self._file.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int | None = -1, /) -> bytes:
        with talking(self._url):
            return bytes(self._file.read(-1 if size is None else size))

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def talking(url: str) -> Iterator[None]:
    """What a store's client raises inside becomes FileNotFoundError, FileExistsError or StoreError, naming `url`."""
    try:
        yield
    except (StoreError, TypeError, AttributeError, AssertionError):  # told already, or a fault of our own
        raise
    except Exception as error:
        raise _told(error, url) from error


def _told(error: Exception, url: str) -> OSError:
    code = _code(error)
    bucket = "/".join(url.split("/")[:3])
    if type(error).__name__ == "FileExpired":
        return Changed("has changed while it was read", where=url)
    if code in _UNMET or isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, "another has written it", url)
    if code == "NoSuchBucket":
        return StoreError("there is no such bucket", where=bucket, hint="make the bucket, or correct its name")
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if code in _DENIED or isinstance(error, PermissionError):
        hint = "reading needs the rights to list and get objects, and a run those to put and delete them too"
        return StoreError(f"access is denied ({code or error})", where=url, hint=hint)
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return StoreError("there are no credentials for it", where=bucket, hint=hint)
    if isinstance(error, ImportError):
        hint = "pip install 'batchgen[s3]'" if url.startswith("s3") else ""
        return StoreError(f"needs a package that is not installed: {error}", where=url, hint=hint)
    reason = str(error.strerror or error) if isinstance(error, OSError) else str(error)
    return StoreError(f"the store failed: {reason or type(error).__name__}", where=url)


def _code(error: BaseException | None) -> str:
    """The S3 error code of an exception, or of one that it came from."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _file_system(url: str, process: int) -> Any:
    return _of_scheme(url.partition("://")[0], process)


@cache
def _of_scheme(scheme: str, process: int) -> Any:
    """One for all threads of a process; a forked one needs its own."""
    from fsspec import filesystem  # takes a tenth of a second, and is for those alone who name an URL

    return filesystem(scheme, use_listings_cache=False)
