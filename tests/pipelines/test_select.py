"""Selections: the rows that a condition takes, each value once, with their hashes and where they are from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_jobs import make_job, read_rows, run, write_input
from support.jobs import job_spec

from batchgen.errors import InputError, RunError
from batchgen.io.hashing import MerkleTree
from batchgen.io.inputs import scan_inputs
from batchgen.io.manifest import read_manifest
from batchgen.pipelines.select import MARK, Selection, select


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of 30 rows, one of them an error, n = 2, in shards of 8 rows."""
    folder = write_input(tmp_path_factory.mktemp("select"), rows=30, bad=[3])
    run(make_job(folder), folder / "run")
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_all_rows(made: Path, tmp_path: Path) -> None:
    found = select(made / "run", tmp_path / "out.parquet")
    assert rows_of(tmp_path / "out.parquet") == read_rows(made / "run").to_pylist()
    assert (found.rows, found.unselected, found.repeated) == (60, 0, 0)
    assert found.root == found.source_root == read_manifest(made / "run").root


def test_a_condition_and_values_once(made: Path, tmp_path: Path) -> None:
    where = "status = 'ok' AND num_output_tokens > 1"
    found = select(made / "run", tmp_path / "out.parquet", where, ["finish_reason", "label"])
    expected: dict[tuple[Any, ...], dict[str, Any]] = {}
    taken = [r for r in read_rows(made / "run").to_pylist() if r["status"] == "ok" and r["num_output_tokens"] > 1]
    for row in taken:
        expected.setdefault((row["finish_reason"], row["label"]), row)
    assert rows_of(tmp_path / "out.parquet") == list(expected.values())
    assert (found.source_rows, found.unselected, found.repeated) == (60, 60 - len(taken), len(taken) - len(expected))
    assert found.rows == len(expected) > 2
    tree = MerkleTree()
    tree.add(0, [bytes.fromhex(row["row_hash"]) for row in expected.values()])
    assert found.root == tree.root(found.rows)


def test_nulls_are_equal_and_near_values_are_not(made: Path, tmp_path: Path) -> None:
    found = select(made / "run", tmp_path / "out.parquet", dedup=["error_code"])
    assert [row["error_code"] for row in rows_of(tmp_path / "out.parquet")] == [None, "prompt_null"]
    assert found.repeated == 58
    assert select(made / "run", tmp_path / "out.parquet", dedup=["row_key", "sample_index"]).repeated == 0


def test_the_file_says_where_its_rows_are_from(made: Path, tmp_path: Path) -> None:
    found = select(made / "run", tmp_path / "out.parquet", "sample_index = 1")
    metadata = pq.read_metadata(tmp_path / "out.parquet").metadata
    kept = json.loads(metadata[MARK.encode()])
    assert Selection(**(kept | {"dedup": tuple(kept["dedup"])})) == found
    assert metadata[b"batchgen.job_fingerprint"].decode() == found.source_fingerprint
    assert b"batchgen.row_keys" not in metadata


def test_equal_runs_give_equal_files(made: Path, tmp_path: Path) -> None:
    folder = write_input(tmp_path, rows=30, bad=[3])
    run(make_job(folder), folder / "again")
    for source, name in ((made / "run", "a"), (folder / "again", "b")):
        select(source, tmp_path / name, "sample_index = 1", ["text"])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_selection_is_an_input(made: Path, tmp_path: Path) -> None:
    select(made / "run", tmp_path / "out.parquet", "status = 'ok'")
    entry = {"path": "out.parquet", "columns": {"prompt": "text"}, "passthrough": ["row_hash", "label"]}
    inputs = scan_inputs(job_spec(entry, row_key={"derive": "sample"}), tmp_path)
    assert inputs.num_rows == 58
    assert inputs.passthrough.names == ["source_row_hash", "label"]


def test_a_selection_may_be_empty(made: Path, tmp_path: Path) -> None:
    found = select(made / "run", tmp_path / "out.parquet", "false")
    assert (found.rows, rows_of(tmp_path / "out.parquet")) == (0, [])


def test_a_changed_run_is_refused_and_leaves_nothing(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made / "run", tmp_path / "run"))
    path = copy / "rows/part-00000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("text")
    pq.write_table(table.set_column(at, "text", pa.array(["x"] * len(table))), path)
    with pytest.raises(InputError, match="the source run changed"):
        select(copy, tmp_path / "out.parquet")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize(
    ("where", "dedup", "message"),
    [
        ("no_such = 1", [], "--where: no column 'no_such'"),
        ("random() > 0.5", [], "depends on more than the row"),
        (None, ["txet"], "--dedup: no column 'txet'\n  did you mean 'text'?"),
    ],
)
def test_what_cannot_be_selected(made: Path, tmp_path: Path, where: str | None, dedup: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        select(made / "run", tmp_path / "out.parquet", where, dedup)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_only_a_selection_is_written_over(made: Path, tmp_path: Path) -> None:
    select(made / "run", tmp_path / "out.parquet")
    assert select(made / "run", tmp_path / "out.parquet", "sample_index = 0").rows == 30
    for bad in (tmp_path / "mine.txt", tmp_path, made / "run/rows/part-00000.parquet"):
        (tmp_path / "mine.txt").write_text("work")
        with pytest.raises(RunError):
            select(made / "run", bad)
    assert (tmp_path / "mine.txt").read_text() == "work"
