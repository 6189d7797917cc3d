"""The first rows of a run, across files, and what is said of files that are torn."""

from pathlib import Path

import pytest
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.errors import RunError
from batchgen.io.first_rows import first_rows
from batchgen.io.manifest import read_manifest


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    run(make_job(write_input(tmp_path, rows=20)), tmp_path / "run", rows_per_shard=3)
    return tmp_path / "run"


@pytest.mark.parametrize("count", [1, 5, 6, 7, 13, 40, 1000])
def test_the_first_rows_in_order(finished: Path, count: int) -> None:
    assert first_rows(finished, read_manifest(finished), count) == read_rows(finished).to_pylist()[:count]


def test_later_files_are_not_read(finished: Path) -> None:
    (finished / "rows/part-00001.parquet").unlink()
    manifest = read_manifest(finished)
    assert len(first_rows(finished, manifest, 6)) == 6
    with pytest.raises(RunError, match=r"part-00001\.parquet: cannot be read: ") as caught:
        first_rows(finished, manifest, 7)
    assert "batchgen verify" in caught.value.hint
