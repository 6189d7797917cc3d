"""Inputs by URL: the rows, keys and digests that a disk would have, of one version of each file."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.jobs import job_spec, write_parquet

from batchgen.errors import InputError
from batchgen.io import parquet_file
from batchgen.io.inputs import input_files, scan_inputs
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.reader import Inputs, read_keys, read_passthrough, read_rows
from batchgen.object_path import ObjectPath
from batchgen.places import Place


@pytest.fixture
def files(tmp_path: Path, bucket: ObjectPath) -> tuple[Path, ObjectPath]:
    """The same files on disk and in a bucket; a hidden one is none of them."""
    for name, start in (("part-10", 100), ("part-2", 0), (".part-3", 200), ("sub/part-1", 300)):
        (tmp_path / "in" / "sub").mkdir(parents=True, exist_ok=True)
        rows = range(start, start + 40)
        path = write_parquet(
            tmp_path / "in" / f"{name}.parquet",
            row_group_size=13,
            id=[f"k{row}" for row in rows],
            prompt=[f"p {row}" for row in rows],
            label=["a" if row % 3 else None for row in rows],
        )
        (bucket / "jobs/in" / f"{name}.parquet").write(path.read_bytes())
    return tmp_path, bucket / "jobs"


def entry(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "columns": {"prompt": "prompt"}, "passthrough": ["label"]} | more


def rows(inputs: Inputs) -> list[Any]:
    """All that a job sees of them."""
    read = [(row.row_key, row.where, row.prompt) for row in read_rows(inputs, 0, inputs.num_rows)]
    return [inputs.digest, read, read_passthrough(inputs, 3, inputs.num_rows - 2).to_pydict()]


@pytest.mark.parametrize(
    "told",
    [
        entry("in/part-2.parquet"),
        entry("in/*.parquet"),
        entry("in/**/*.parquet"),
        entry("in/part-?.parquet", limit=17),
        entry("in/part-*.parquet", where="label IS NULL AND id <> 'k3'"),
    ],
)
def test_they_are_those_of_a_disk(files: tuple[Path, ObjectPath], told: dict[str, Any]) -> None:
    disk, store = files
    here, there = (scan_inputs(job_spec(told), base) for base in (disk, store))
    assert rows(here) == rows(there)
    assert [file.label for file in here.files] == [file.label for file in there.files]


def test_an_url_in_a_job_on_disk(files: tuple[Path, ObjectPath]) -> None:
    disk, store = files
    here = scan_inputs(job_spec(entry("in/*.parquet")), disk)
    assert rows(scan_inputs(job_spec(entry(f"{store}/in/*.parquet")), disk / "elsewhere")) == rows(here)
    assert rows(scan_inputs(job_spec(entry(f"file://{disk}/in/*.parquet")), store)) == rows(here)


def test_a_file_that_changes_under_the_job(files: tuple[Path, ObjectPath]) -> None:
    _, store = files
    inputs = scan_inputs(job_spec(entry("in/part-2.parquet")), store)
    reading = read_rows(inputs, 0, 40)
    next(reading)
    data = (store / "in/part-2.parquet").read_bytes()
    (store / "in/part-2.parquet").write((store / "in/part-10.parquet").read_bytes())
    with pytest.raises(InputError, match=r"part-2\.parquet: has changed since the job read it first"):
        list(read_rows(inputs, 0, 40))
    (store / "in/part-2.parquet").write(data)
    assert [row.row_key for row in reading] == [f"k{row}" for row in range(1, 40)]


def test_a_large_file_is_read_by_pieces_of_one_version(
    files: tuple[Path, ObjectPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, store = files
    here = scan_inputs(job_spec(entry("in/*.parquet")), disk)
    monkeypatch.setattr(parquet_file, "_ONE_REQUEST_BYTES", 100)
    monkeypatch.setattr(parquet_file, "_PIECE_BYTES", 64)
    there = scan_inputs(job_spec(entry("in/*.parquet")), store)
    assert rows(there) == rows(here)
    reading = read_keys(scan_inputs(job_spec(entry("in/part-2.parquet")), store))
    next(reading)
    (store / "in/part-2.parquet").write((store / "in/part-10.parquet").read_bytes())
    with pytest.raises(InputError, match=r"part-2\.parquet: cannot be read: has changed while it was read"):
        list(reading)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("in/none.parquet", r"s3://.*/jobs/in/none\.parquet: there is no such file"),
        ("in/none*.parquet", r"inputs\[0\]\.path: no file matches 'in/none\*\.parquet'\n  looked in s3://.*/jobs/in"),
        ("in", r"s3://.*/jobs/in: is a directory, not a file"),
        ("s3://no-such-bucket-here/*.parquet", r"no file matches .*\n  looked in s3://no-such-bucket-here"),
        ("s3:///x", r"inputs\[0\]\.path: 's3:///x' names no bucket: write s3://BUCKET/KEY"),
        ("zz://a/x", r"zz://a/x: the store failed: Protocol not known: zz"),
        ("torn.parquet", r"torn\.parquet: is a truncated or damaged Parquet file"),
        ("notes.txt", r"notes\.txt: is not a Parquet file"),
    ],
)
def test_what_is_no_input_is_told(files: tuple[Path, ObjectPath], path: str, fault: str) -> None:
    _, store = files
    (store / "torn.parquet").write((store / "in/part-2.parquet").read_bytes()[:-7])
    (store / "notes.txt").write(b"notes")
    with pytest.raises(InputError, match=fault):
        scan_inputs(job_spec(entry(path)), store)


def test_files_are_named_as_on_disk(files: tuple[Path, ObjectPath]) -> None:
    disk, store = files
    found: list[list[str]] = []
    bases: list[Place] = [disk, store]
    for base in bases:
        found.append([label for _, label in input_files("in/**/part-*.parquet", base, "inputs[0]")])
    assert found[0] == found[1] == ["part-2.parquet", "part-10.parquet", "sub/part-1.parquet"]


def test_a_parquet_file_is_opened_anywhere(tmp_path: Path, bucket: ObjectPath) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    (bucket / "a.parquet").write((tmp_path / "a.parquet").read_bytes())
    places: list[Place] = [tmp_path / "a.parquet", bucket / "a.parquet"]
    for path in places:
        with open_parquet_file(path) as file:
            assert file.read().equals(table)
        with pytest.raises(FileNotFoundError), open_parquet_file(path.parent / "none.parquet"):
            pass
