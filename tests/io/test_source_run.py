"""A finished run as input: its rows in order, checked again, and every way in which it can have changed."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import JOB_YAML, build_prompt, make_job, read_rows, run, write_input
from support.jobs import job_spec, write_parquet

from batchgen.errors import InputError, RunError, SpecError
from batchgen.executor.base import Job
from batchgen.io.inputs import scan_inputs
from batchgen.io.manifest import read_manifest, write_manifest
from batchgen.io.reader import Inputs
from batchgen.io.reader import read_rows as read_input
from batchgen.spec import JobSpec

CHAIN: dict[str, Any] = {"run": "first", "columns": {"prompt": "text"}, "passthrough": ["row_key", "row_hash", "label"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run `first`: 20 rows, one of them an error, n = 2, shards of 8."""
    folder = write_input(tmp_path_factory.mktemp("chain"), rows=20, bad=[3])
    run(make_job(folder), folder / "first")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def spec(**entry: Any) -> JobSpec:
    return job_spec(CHAIN | entry, row_key={"derive": "sample"}, sampling={"max_tokens": 8})


def scan(folder: Path, **entry: Any) -> Inputs:
    return scan_inputs(spec(**entry), folder)


def second_job(folder: Path, **entry: Any) -> Job:
    return Job(spec(**entry), JOB_YAML, scan(folder, **entry), spec(**entry).sampling, build_prompt)


def test_samples_are_the_rows_in_order(made: Path) -> None:
    inputs = scan(made)
    rows = list(read_input(inputs, 0, inputs.num_rows))
    source = read_rows(made / "first").to_pylist()
    assert [row.row_key for row in rows] == [f"{row['row_key']}/{row['sample_index']}" for row in source]
    assert [row.prompt for row in rows] == [row["text"] for row in source]
    assert len(rows) == 40


def test_where_chooses_among_them(made: Path) -> None:
    inputs = scan(made, where="status = 'ok' AND sample_index = 0", limit=5)
    assert [row.row_key for row in read_input(inputs, 0, 5)] == [f"row-{i}/0" for i in (0, 1, 2, 4, 5)]


def test_the_second_run_says_where_its_rows_are_from(folder: Path) -> None:
    report = run(second_job(folder), folder / "second")
    rows, source = read_rows(folder / "second").to_pylist(), read_rows(folder / "first").to_pylist()
    assert [row["source_row_hash"] for row in rows] == [row["row_hash"] for row in source]
    assert [row["label"] for row in rows] == [row["label"] for row in source]
    assert report.counts.error == 2
    roots = {file.run_root for file in read_manifest(folder / "second").inputs}
    assert roots == {read_manifest(folder / "first").root}


def test_how_the_source_is_cut_cannot_be_seen(folder: Path) -> None:
    digest = scan(folder, where="sample_index = 1").digest
    shutil.rmtree(folder / "first")
    run(make_job(folder), folder / "first", FakeEngine(order=3), rows_per_shard=3)
    assert scan(folder, where="sample_index = 1").digest == digest
    assert scan(folder, where="sample_index = 0").digest != digest


def test_a_root_that_is_named_is_held_to(made: Path) -> None:
    root = str(read_manifest(made / "first").root)
    assert scan(made, root=root).digest == scan(made).digest
    with pytest.raises(InputError, match=f"the source run changed: its root is {root}, and the job names 0000"):
        scan(made, root="0" * 64)


def edit_a_row(folder: Path) -> None:
    path = folder / "first/rows/part-00001.parquet"
    table = pq.read_table(path)
    texts = ["forged", *table["text"].to_pylist()[1:]]
    pq.write_table(table.set_column(table.column_names.index("text"), "text", pa.array(texts)), path)


def lose_a_file(folder: Path) -> None:
    (folder / "first/rows/part-00002.parquet").unlink()


def lose_the_root(folder: Path) -> None:
    write_manifest(folder / "first", replace(read_manifest(folder / "first"), root=None))


def forge_the_root(folder: Path) -> None:
    write_manifest(folder / "first", replace(read_manifest(folder / "first"), root="0" * 64))


def lose_the_run(folder: Path) -> None:
    shutil.rmtree(folder / "first")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit_a_row, "inputs[0].run: the source run changed: changed: rows/part-00001.parquet row 'row-8'"),
        (lose_a_file, "inputs[0].run: the source run changed: torn: rows/part-00002.parquet"),
        (lose_the_root, "inputs[0].run: the source run is not finished"),
        (forge_the_root, "inputs[0].run: the source run changed: its rows give"),
        (lose_the_run, "inputs[0].run: the source run cannot be used: is not a run folder"),
    ],
)
def test_a_run_that_is_not_what_it_was(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(InputError) as caught:
        scan(folder)
    assert message in str(caught.value)


def test_going_on_after_the_source_was_made_anew_is_refused(folder: Path) -> None:
    run(second_job(folder), folder / "second")
    shutil.rmtree(folder / "first")
    run(make_job(folder, seed=1), folder / "first")
    with pytest.raises(RunError, match=r"the source run changed: its root was [0-9a-f]{64}, and is [0-9a-f]{64}"):
        run(second_job(folder), folder / "second")


def test_columns_of_two_sources_do_not_collide(folder: Path) -> None:
    run(second_job(folder), folder / "second")
    with pytest.raises(InputError, match="'row_key' is carried as source_row_key, and so is another column"):
        scan(folder, run="second", passthrough=["row_key", "source_row_key"])


def test_rows_of_batchgen_are_known_by_their_file(made: Path) -> None:
    inputs = scan(made, run=None, path="first/rows/*.parquet")
    assert inputs.passthrough.names == ["source_row_key", "source_row_hash", "label"]


def test_samples_need_the_columns_that_name_them(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", row_key=["a"], text=["b"])
    with pytest.raises(InputError, match="no column 'sample_index'"):
        scan(tmp_path, run=None, path="in.parquet", passthrough=[])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"path": "in.parquet"}, "takes the place of path"),
        ({"run": None}, "is required"),
        ({"root": "0" * 64, "run": None, "path": "in.parquet"}, "goes with run only"),
        ({"root": "0"}, "pattern"),
        ({"columns": None}, "is required, or one of prompt_template and messages_template"),
        ({"prompt_template": "{{ text }}"}, "is one of three ways to a prompt"),
        ({"columns": None, "prompt_template": "{{ text"}, "is no template"),
        ({"cross": {"path": "p.parquet", "key": "k"}}, "goes with a template only"),
        ({"sample": {"rows": 1}, "limit": 1}, "two ways to take fewer rows"),
        ({"sample": {"rows": 0}}, "greater than or equal to 1"),
    ],
)
def test_keys_that_do_not_go_together(entry: dict[str, Any], message: str) -> None:
    with pytest.raises((SpecError, ValueError), match=message):
        spec(**entry)
