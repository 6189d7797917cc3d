"""A disk that is full, too small a file limit, a folder that cannot be written."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import child_run
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import RunError
from batchgen.io.manifest import read_manifest
from batchgen.verify.integrity import verify_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("disk"), 50)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB of its own; needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, leave: int) -> Path:
    room = os.statvfs(disk)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - leave))
    return ballast


@pytest.mark.parametrize("leave", [0, 8 << 10, 24 << 10, 64 << 10])
def test_a_full_disk(folder: Path, tmp_path: Path, small_disk: Path, leave: int) -> None:
    root = run(make_job(folder), tmp_path / "whole").root
    ballast = fill(small_disk, leave)
    with pytest.raises(RunError, match="cannot write: No space left on device") as caught:
        run(make_job(folder), small_disk / "run", rows_per_shard=3)
    assert str(small_disk / "run") in caught.value.where
    if (small_disk / "run" / "manifest.json").exists():
        assert verify_run(small_disk / "run").counts.keys() <= {"unfinished", "stray"}
    assert not [path for path in small_disk.rglob("*") if path.name.endswith(".tmp")]
    ballast.unlink()
    assert run(make_job(folder), small_disk / "run").root == root


def test_a_limit_on_files_that_hits_the_manifest(folder: Path, tmp_path: Path) -> None:
    """The shards are small and fit; the manifest grows past the limit."""
    root = run(make_job(folder), tmp_path / "whole").root
    command = [sys.executable, child_run.__file__, str(folder), str(tmp_path / "run"), "--limit", "8000"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == RunError.exit_code, process.stderr
    assert "cannot write: File too large" in process.stderr
    assert "Traceback" not in process.stderr
    assert verify_run(tmp_path / "run").counts.keys() <= {"unfinished", "stray"}
    assert run(make_job(folder), tmp_path / "run").root == root


def test_a_folder_that_cannot_be_written(folder: Path, tmp_path: Path, small_disk: Path) -> None:
    out = small_disk / "run"
    root = run(make_job(folder), out, rows_per_shard=50).root
    manifest = read_manifest(out)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert run(make_job(folder), out).root == root  # finished, so nothing is written
    with pytest.raises(RunError, match="cannot write: Read-only file system"):
        run(make_job(folder), small_disk / "other")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    (out / "rows" / "part-00000.parquet").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match="cannot write: Read-only file system"):
        run(make_job(folder), out)
    assert read_manifest(out) == manifest


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(RunError, match="cannot write: Permission denied"):
        run(make_job(folder), tmp_path / "run")
    tmp_path.chmod(0o755)
