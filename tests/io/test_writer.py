import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785

from batchgen.errors import RunError
from batchgen.io.writer import ROW_KEYS, TEMPORARY, row_keys_json, shard_bytes, write_atomically


def test_a_file_is_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_atomically(tmp_path / "manifest.json", data)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_bytes() == b"two"


def test_a_write_that_fails_keeps_the_old_file_and_names_it(tmp_path: Path) -> None:
    target = tmp_path / "manifest.json"
    target.mkdir()
    (target / "x").touch()
    with pytest.raises(RunError, match=r"manifest\.json: cannot write: .*directory"):
        write_atomically(target, b"new")
    assert (target / "x").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file or directory"):
        write_atomically(tmp_path / "gone" / "job.yaml", b"")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        (".part-00000.parquet.tmp", True),
        (".part-1000000.parquet.tmp", True),
        (".manifest.json.tmp", True),
        (".job.yaml.tmp", True),
        ("part-00000.parquet", False),
        (".part-00000.parquet.untrusted", False),
        (".notes.tmp", False),
    ],
)
def test_only_our_own_temporary_names_are_ours(name: str, ours: bool) -> None:
    assert bool(TEMPORARY.fullmatch(name)) == ours


def test_a_shard_reads_back_with_its_metadata(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([2**64 - 1], pa.uint64()), "t": pa.array([1], pa.timestamp("ns"))})
    table = table.replace_schema_metadata({"batchgen.numerics": "portable/1"})
    (tmp_path / "part-00000.parquet").write_bytes(shard_bytes(table, row_keys_json(["é"])))
    back = pq.read_table(tmp_path / "part-00000.parquet")
    assert back.schema.metadata[b"batchgen.numerics"] == b"portable/1"
    assert json.loads(back.schema.metadata[ROW_KEYS]) == ["é"]
    assert back.equals(table)


def test_equal_tables_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(shard_bytes(pa.table({"a": [1, 2, 3]}), b"[]"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_small_shard_is_quick_to_read_and_a_large_one_is_compressed(tmp_path: Path) -> None:
    for name, rows, codec in (("small", 100, "UNCOMPRESSED"), ("large", 10_000, "ZSTD")):
        keys = [f"row-{row}" for row in range(rows)]
        table = pa.table({"row_key": keys, "status": ["ok"] * rows, "token_ids": [[1, 2, 3]] * rows})
        (tmp_path / name).write_bytes(shard_bytes(table, b"[]"))
        group = pq.read_metadata(tmp_path / name).row_group(0)
        columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        assert {column.compression for column in columns.values()} == {codec}
        assert [name for name, column in columns.items() if column.has_dictionary_page] == ["status"]
        assert columns["row_key"].statistics.max == max(keys)


def test_row_keys_are_canonical_json() -> None:
    keys = ['a"\\', "\x00\x1f\x7f\b\n", "é\u2028😀", ""]
    assert row_keys_json(keys) == rfc8785.dumps(keys)
