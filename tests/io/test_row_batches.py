"""Rows of files that another program wrote anew have the types of our own; what no row can hold is an error."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_jobs import make_job, read_rows, run, write_input
from support.run_damage import put, rewrite
from support.varied_types import VARIANTS, retype

from batchgen.errors import RunError
from batchgen.io.manifest import read_manifest
from batchgen.io.row_batches import row_batches


@pytest.fixture
def out(tmp_path: Path) -> Path:
    run(make_job(write_input(tmp_path, rows=20, bad=[2]), sampling={"logprobs": 1}), tmp_path / "run")
    return tmp_path / "run"


def rows(out: Path, size: int = 5) -> pa.Table:
    manifest = read_manifest(out)
    batches = [batch for shard in manifest.shards for batch in row_batches(out, shard, size)]
    return pa.concat_tables(batches, promote_options="permissive")  # a passthrough column may be large


@pytest.mark.parametrize("variant", VARIANTS)
def test_another_writers_types(out: Path, variant: str) -> None:
    before = read_rows(out).drop_columns(["label", "meta"])
    for shard in (0, 2):
        rewrite(out, shard, retype(variant))
    assert rows(out).drop_columns(["label", "meta"]).equals(before)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_sizes(out: Path, size: int) -> None:
    sizes = [batch.num_rows for batch in row_batches(out, read_manifest(out).shards[0], size)]
    assert max(sizes) == min(size, 16)
    assert sum(sizes) == 16


def test_columns(out: Path) -> None:
    [batch] = row_batches(out, read_manifest(out).shards[0], 100, ["text", "row_key"])
    assert batch.column_names == ["text", "row_key"]


def no_utf8(table: pa.Table) -> pa.Table:
    spoilt = pa.array([b"\xff"] * table.num_rows, pa.binary()).view(pa.string())
    return table.set_column(table.column_names.index("text"), "text", spoilt)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (no_utf8, "cannot be read: .*UTF8"),
        (put("text", 0, None), "has rows whose text does not go with their status"),
        (put("error_code", 4, None), "has rows whose error_code does not go with their status"),
        (put("error_message", 0, "what?"), "has rows whose error_message does not go with their status"),
        (lambda table: table.set_column(0, "row_key", pa.nulls(table.num_rows)), "cannot be read: .*row_key"),
        (lambda table: table.set_column(6, "prompt_token_ids", table["text"]), "cannot be read: "),
        (lambda table: table.append_column("text", table["text"]), "two columns have one name"),
    ],
)
def test_what_no_row_holds(out: Path, change: Callable[[pa.Table], pa.Table], said: str) -> None:
    path = out / "rows/part-00000.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(RunError, match=rf"part-00000\.parquet: .*{said}") as caught:
        rows(out)
    assert "batchgen verify" in caught.value.hint
