import os
from pathlib import Path

import pytest

from batchgen.object_path import ObjectPath
from batchgen.places import Place, join, place, seen_from, stamp


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("runs/a", Path("runs/a")),
        ("file:///data/a%20b", Path("/data/a b")),
        ("s3://bucket/runs/a/", ObjectPath("s3://bucket/runs/a")),
        ("S3://bucket", ObjectPath("s3://bucket")),
        ("gs://bucket/a#b?c", ObjectPath("gs://bucket/a#b?c")),
        ("s3:/bucket", Path("s3:/bucket")),
    ],
)
def test_a_text_names_a_place(text: str, there: Place) -> None:
    assert place(text) == there


@pytest.mark.parametrize("text", ["s3://", "s3:///key", "file://host/a"])
def test_a_text_that_names_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"write (s3|file)://"):
        place(text)


@pytest.mark.parametrize(
    ("base", "text", "there"),
    [
        ("jobs", "a/b.parquet", "jobs/a/b.parquet"),
        ("jobs", "/data/b.parquet", "/data/b.parquet"),
        ("jobs", "s3://b/c", "s3://b/c"),
        ("s3://b/jobs", "data/x", "s3://b/jobs/data/x"),
        ("s3://b/jobs", "../data/x", "s3://b/data/x"),
        ("s3://b/jobs", "/data/x", "/data/x"),
        ("s3://b/jobs", "file:///data/x", "/data/x"),
    ],
)
def test_a_text_is_seen_from_a_folder(base: str, text: str, there: str) -> None:
    assert str(join(place(base), text)) == there


@pytest.mark.parametrize(
    ("there", "base", "text"),
    [
        ("/a/jobs", "/a/runs/x", "../../jobs"),
        ("s3://b/jobs", "s3://b/runs/x", "../../jobs"),
        ("s3://b", "s3://b/runs/x", "../.."),
        ("s3://c/jobs", "s3://b/runs/x", "s3://c/jobs"),
        ("s3://b/jobs", "/a/runs", "s3://b/jobs"),
        ("/a/jobs", "s3://b/runs/x", "/a/jobs"),
    ],
)
def test_a_place_is_found_again_from_a_folder(there: str, base: str, text: str) -> None:
    assert seen_from(place(there), place(base)) == text
    back = join(place(base), text)
    assert back == place(there) or Path(os.path.normpath(str(back))) == place(there)


def test_a_relative_place_on_disk_is_named_from_the_root() -> None:
    assert seen_from(Path("jobs"), place("s3://b/x")) == str(Path.cwd() / "jobs")


def test_a_stamp_is_of_one_version(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    before = stamp(file)
    assert stamp(file) == before
    os.utime(file, ns=(0, 0))
    assert stamp(file) == (3, 0) != before
