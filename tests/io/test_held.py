"""Whether a process holds a run, seen without touching its lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchgen.errors import RunError
from batchgen.io.held import is_held
from batchgen.io.run_folder import RunFolder


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, how)
    yield
    os.close(lock)


def test_a_writer_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert not is_held(run)
    with RunFolder.open(run):
        assert is_held(run)
        assert not is_held(tmp_path)
        with pytest.raises(RunError, match="another process"):
            RunFolder.open(run)
    assert not is_held(run)


def test_a_reader_is_no_writer(tmp_path: Path) -> None:
    with locked(tmp_path, fcntl.LOCK_SH):
        assert not is_held(tmp_path)
    with locked(tmp_path, fcntl.LOCK_EX):
        assert is_held(tmp_path)


@pytest.mark.parametrize("table", ["", "1: FLOCK\n", "1: POSIX  ADVISORY  WRITE {pid} {place} 0 EOF\n", "\xff"])
def test_other_lines_are_no_writer(tmp_path: Path, table: str) -> None:
    status = os.stat(tmp_path)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (tmp_path / "locks").write_text(table.format(pid=os.getpid(), place=place), encoding="latin-1")
    assert not is_held(tmp_path, tmp_path / "locks")
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 1 {place} 0 EOF\n", encoding="ascii")
    assert is_held(tmp_path, tmp_path / "locks")


def test_where_there_is_no_table_nobody_is_seen(tmp_path: Path) -> None:
    with locked(tmp_path, fcntl.LOCK_EX):
        assert not is_held(tmp_path, tmp_path / "none")
