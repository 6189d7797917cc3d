"""The Parquet of a diff: whole or not there, and never in place of something else."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bent_engine import BentEngine
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import RunError, VerifyError
from batchgen.io.manifest import part_name
from batchgen.verify.diff import diff_runs
from batchgen.verify.diff_file import DiffFile
from batchgen.verify.sorting import SCHEMA


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    job = make_job(write_input(tmp_path / "in", rows=20), sampling={"logprobs": 0})
    run(job, tmp_path / "a")
    run(job, tmp_path / "b", BentEngine(bends={"row-3": "token"}))
    return tmp_path / "a", tmp_path / "b"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_rows_that_differ(runs: tuple[Path, Path], tmp_path: Path) -> None:
    diff_runs(*runs, out=tmp_path / "diff.parquet")
    table = pq.read_table(tmp_path / "diff.parquet")
    assert table.schema.equals(SCHEMA)
    assert table["row_key"].to_pylist() == ["row-3", "row-3"]
    assert names(tmp_path) == ["a", "b", "diff.parquet", "in"]


def test_no_row_differs(runs: tuple[Path, Path], tmp_path: Path) -> None:
    diff_runs(runs[0], runs[0], out=tmp_path / "diff.parquet")
    table = pq.read_table(tmp_path / "diff.parquet")
    assert (table.num_rows, table.schema.equals(SCHEMA)) == (0, True)


def test_an_earlier_diff_is_replaced(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "diff.parquet"
    diff_runs(*runs, out=out)
    first = out.read_bytes()
    diff_runs(runs[0], runs[0], out=out)
    assert pq.read_table(out).num_rows == 0
    diff_runs(*runs, out=out)
    assert out.read_bytes() == first


@pytest.mark.parametrize("kind", ["text", "parquet", "empty"])
def test_any_other_file_is_left_alone(runs: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    out = tmp_path / "mine.parquet"
    if kind == "parquet":
        pq.write_table(pa.table({"x": [1]}), out)
    else:
        out.write_text("mine" if kind == "text" else "")
    before = out.read_bytes()
    with pytest.raises(RunError, match="is there already, and no earlier diff") as caught:
        diff_runs(*runs, out=out)
    assert (caught.value.where, caught.value.exit_code) == (str(out), 7)
    assert out.read_bytes() == before


def test_places_where_it_cannot_be(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for place, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "diff.parquet", "cannot write: "),
        (runs[0] / "rows" / "diff.parquet", "lies in a run folder"),
        (runs[1] / "diff.parquet", "lies in a run folder"),
    ):
        with pytest.raises(RunError, match=message):
            diff_runs(*runs, out=place)


def test_after_an_error_there_is_nothing(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (runs[1] / part_name(1)).unlink()
    with pytest.raises(VerifyError):
        diff_runs(*runs, out=tmp_path / "diff.parquet")
    assert names(tmp_path) == ["a", "b", "in"]


def test_a_full_disk(tmp_path: Path) -> None:
    """/dev/full takes no byte."""
    out = tmp_path / "diff.parquet"
    os.symlink("/dev/full", tmp_path / ".diff.parquet.tmp")
    rows = SCHEMA.empty_table()
    with pytest.raises(RunError, match=r"cannot write: .*No space left on device"), DiffFile(out, None, "r") as file:
        file.write(rows)
    assert names(tmp_path) == []
