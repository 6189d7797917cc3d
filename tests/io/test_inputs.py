"""The scan of the input: which files and rows, in which order, and every way in which they can be wrong."""

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.jobs import job_spec, text_of_bytes, write_parquet

from batchgen.errors import InputError
from batchgen.io.inputs import natural_order, scan_inputs
from batchgen.io.reader import Inputs, read_keys, read_rows

GLOB = {"path": "part-*.parquet", "columns": {"prompt": "prompt"}}


def keys(inputs: Inputs) -> list[str]:
    return [key for block in read_keys(inputs) for key in block]


def refused(base_dir: Path, *inputs: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(InputError) as caught:
        scan_inputs(job_spec(*inputs, **sections), base_dir)
    return str(caught.value)


# --- files and order ---


def test_globs_sort_numbers_as_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write_parquet(tmp_path / f"part-{number}.parquet", id=[f"k{number}"], prompt=["p"])
    inputs = scan_inputs(job_spec(GLOB), tmp_path)
    assert [file.label for file in inputs.files] == ["part-1.parquet", "part-2.parquet", "part-10.parquet"]
    assert keys(inputs) == ["k1", "k2", "k10"]


def test_natural_order() -> None:
    labels = ["10", "9", "a/10", "a/9", "b1x", "b1", "b01", "é"]
    assert sorted(labels, key=natural_order) == ["9", "10", "a/9", "a/10", "b01", "b1", "b1x", "é"]


def test_entries_follow_the_spec_not_the_alphabet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", id=["a"], prompt=["p"])
    write_parquet(tmp_path / "b.parquet", id=["b"], question=["q"])
    first = {"path": "b.parquet", "columns": {"prompt": "question"}}
    second = {"path": "a.parquet", "columns": {"prompt": "prompt"}}
    assert keys(scan_inputs(job_spec(first, second), tmp_path)) == ["b", "a"]


def test_labels_and_digest_do_not_depend_on_the_place(tmp_path: Path) -> None:
    (tmp_path / "here" / "deep").mkdir(parents=True)
    write_parquet(tmp_path / "here" / "deep" / "x.parquet", id=["a"], prompt=["p"])
    spec = job_spec({"path": "**/*.parquet", "columns": {"prompt": "prompt"}}, row_key={"derive": "file_and_row"})
    here = scan_inputs(spec, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = scan_inputs(spec, tmp_path / "there")
    assert keys(here) == keys(there) == ["deep/x.parquet:0"]
    assert here.digest == there.digest


def test_the_digest_sees_bytes_selection_and_limit(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=[1, 2, 3], prompt=["p", "q", "r"])
    base: dict[str, Any] = {"path": "in.parquet", "columns": {"prompt": "prompt"}}
    variants = [base, base | {"limit": 2}, base | {"where": "id > 1"}, base | {"where": "id < 3"}]
    digests = [scan_inputs(job_spec(entry), tmp_path).digest for entry in variants]
    write_parquet(path, id=[1, 2, 3], prompt=["p", "q", "s"])
    digests.append(scan_inputs(job_spec(base), tmp_path).digest)
    assert len(set(digests)) == 5


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"limit": 3}, ["0", "1", "2"]),
        ({"limit": 99}, ["0", "1", "2", "3", "4", "5"]),
        ({"where": "id % 2 = 1"}, ["1", "3", "5"]),
        ({"where": "id % 2 = 1", "limit": 2}, ["1", "3"]),
    ],
)
def test_where_and_limit(tmp_path: Path, extra: dict[str, Any], expected: list[str]) -> None:
    write_parquet(tmp_path / "part-1.parquet", id=[0, 1, 2, 3], prompt=["p"] * 4)
    write_parquet(tmp_path / "part-2.parquet", id=[4, 5], prompt=["p"] * 2)
    inputs = scan_inputs(job_spec(GLOB | extra), tmp_path)
    assert keys(inputs) == expected
    assert inputs.num_rows == len(expected)


# --- faults of files ---


def test_no_such_file(tmp_path: Path) -> None:
    assert "in.parquet: there is no such file" in refused(tmp_path)


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").mkdir()
    text = refused(tmp_path)
    assert "is a directory" in text
    assert "DIRECTORY/*.parquet" in text


def test_a_glob_that_matches_nothing(tmp_path: Path) -> None:
    assert "inputs[0].path: no file matches 'part-*.parquet'" in refused(tmp_path, GLOB)


@pytest.mark.parametrize("content", [b"", b"PA", b"id,prompt\n1,hello\n"])
def test_not_parquet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.parquet").write_bytes(content)
    assert "in.parquet: is not a Parquet file" in refused(tmp_path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_truncated_parquet(tmp_path: Path, keep: float) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=list(range(1000)), prompt=["p"] * 1000)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert "in.parquet: is a truncated or damaged Parquet file" in refused(tmp_path)


def test_a_hole_inside_a_file(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=[f"key {i}" for i in range(1000)], prompt=["p"] * 1000)
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    assert "in.parquet: cannot be read" in refused(tmp_path)


def test_nothing_left(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=pa.array([], pa.int64()), prompt=pa.array([], pa.string()))
    assert "no row is left" in refused(tmp_path)


# --- faults of columns ---


def test_a_missing_column_gets_the_nearest_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], prompts=["p"])
    text = refused(tmp_path)
    assert "in.parquet: no column 'prompt'" in text
    assert "did you mean 'prompts'?" in text


@pytest.mark.parametrize("role", ["key", "passthrough"])
def test_missing_key_and_passthrough_columns(tmp_path: Path, role: str) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], prompt=["p"])
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}}
    if role == "key":
        assert "no column 'idd'" in refused(tmp_path, entry, row_key={"column": "idd"})
    else:
        assert "no column 'meta'" in refused(tmp_path, entry | {"passthrough": ["meta"]})


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ({"prompt": "c"}, pa.array([1]), "text wanted, it holds int64"),
        ({"messages": "c"}, pa.array(["hi"]), "a list of structs with role and content wanted"),
        ({"messages": "c"}, pa.array([[{"role": "user"}]]), "a list of structs with role and content wanted"),
        ({"prompt_token_ids": "c"}, pa.array([[1.5]]), "a list of integers wanted"),
        ({"messages": "c"}, pa.array([[{"role": "user", "content": b"x"}]]), "binary inside a messages column"),
    ],
)
def test_columns_of_wrong_types(tmp_path: Path, columns: dict[str, str], values: pa.Array, message: str) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], c=values)
    text = refused(tmp_path, {"path": "in.parquet", "columns": columns})
    assert "in.parquet: c: " in text
    assert message in text


def test_a_key_column_of_floats(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1.0], prompt=["p"])
    assert "cannot be the row_key column: text or integers wanted, it holds double" in refused(tmp_path)


def test_files_that_disagree_on_a_passthrough_type(tmp_path: Path) -> None:
    write_parquet(tmp_path / "part-1.parquet", id=[1], prompt=["p"], x=[1])
    write_parquet(tmp_path / "part-2.parquet", id=[2], prompt=["p"], x=["1"])
    text = refused(tmp_path, GLOB | {"passthrough": ["x"]})
    assert "part-2.parquet: x: is string here and int64 in" in text


def test_a_passthrough_column_with_an_output_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], prompt=["p"], seed=[1])
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}, "passthrough": ["seed"]}
    text = refused(tmp_path, entry)
    assert "inputs[0].passthrough: 'seed' is the name of an output column\n  rename it in the input" in text


def test_passthrough_text_that_is_not_utf8(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2, 3], prompt=["p"] * 3, x=text_of_bytes([b"a", b"b", b"\xff"]))
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}, "passthrough": ["x"]}
    assert "in.parquet row 2: column 'x' holds bytes that are not UTF-8" in refused(tmp_path, entry)
    assert scan_inputs(job_spec(entry | {"where": "id < 3"}), tmp_path).num_rows == 2


def test_passthrough_list_views(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], prompt=["p"], x=pa.array([[1]], pa.list_view(pa.int32())))
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}, "passthrough": ["x"]}
    assert "list views cannot be passed through" in refused(tmp_path, entry)


# --- row keys ---


def test_a_null_key(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=["a", None], prompt=["p", "q"])
    assert "in.parquet row 1: the row key is null" in refused(tmp_path)


def test_a_key_that_is_not_utf8(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=text_of_bytes([b"a", b"\xff"]), prompt=["p", "q"])
    assert "in.parquet row 1: the row key holds bytes that are not UTF-8" in refused(tmp_path)


def test_duplicate_keys_name_both_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "part-1.parquet", id=["a", "b", "c"], prompt=["p"] * 3)
    write_parquet(tmp_path / "part-2.parquet", id=["d", "b"], prompt=["p"] * 2)
    text = refused(tmp_path, GLOB)
    assert "part-2.parquet row 1: has the row key 'b' of " in text
    assert "part-1.parquet row 1" in text
    assert "on_duplicate: suffix" in text


def test_the_same_key_in_rows_that_are_left_out_is_no_duplicate(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=["a", "a"], prompt=["p", "q"])
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}, "where": "prompt = 'q'"}
    assert keys(scan_inputs(job_spec(entry), tmp_path)) == ["a"]


def test_suffixes_follow_input_order(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=["a", "b", "a", "a", "b"], prompt=["p"] * 5)
    inputs = scan_inputs(job_spec(row_key={"column": "id", "on_duplicate": "suffix"}), tmp_path)
    assert keys(inputs) == ["a", "b", "a#2", "a#3", "b#2"]
    assert [row.row_key for row in read_rows(inputs, 2, 5)] == ["a#2", "a#3", "b#2"]


def test_a_suffixed_key_that_is_taken_is_an_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=["a", "a#2", "a"], prompt=["p"] * 3)
    text = refused(tmp_path, row_key={"column": "id", "on_duplicate": "suffix"})
    assert "in.parquet row 2: has the row key 'a#2' of" in text
    assert "rename one of them in the data" in text
    assert "on_duplicate" not in text


def test_integer_and_text_keys(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=pa.array([2**64 - 1, 0], pa.uint64()), prompt=["p"] * 2)
    assert keys(scan_inputs(job_spec(), tmp_path)) == ["18446744073709551615", "0"]


def test_content_keys_depend_on_the_prompt_alone(tmp_path: Path) -> None:
    derive = {"row_key": {"derive": "content_hash"}}
    write_parquet(tmp_path / "in.parquet", id=[1, 2, 3], prompt=["p", "q", None])
    first = keys(scan_inputs(job_spec(**derive), tmp_path))
    write_parquet(tmp_path / "in.parquet", id=[9, 8], prompt=pa.array(["q", "p"]).dictionary_encode())
    assert keys(scan_inputs(job_spec(**derive), tmp_path)) == [first[1], first[0]]
    assert len(set(first)) == 3


def test_equal_content_is_a_duplicate(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2], prompt=["p", "p"])
    assert "row 1: has the row key '" in refused(tmp_path, row_key={"derive": "content_hash"})
    suffix = {"derive": "content_hash", "on_duplicate": "suffix"}
    first, second = keys(scan_inputs(job_spec(row_key=suffix), tmp_path))
    assert second == f"{first}#2"


def test_content_keys_do_not_see_nulls_that_arrow_made_up(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": "hi"}]]
    entry = {"path": "in.parquet", "columns": {"messages": "messages"}}
    write_parquet(tmp_path / "in.parquet", messages=chats)
    alone = keys(scan_inputs(job_spec(entry, row_key={"derive": "content_hash"}), tmp_path))
    chats.append([{"role": "user", "content": "hi", "name": "x"}])
    write_parquet(tmp_path / "in.parquet", messages=chats)
    together = keys(scan_inputs(job_spec(entry, row_key={"derive": "content_hash"}), tmp_path))
    assert together[:1] == alone
    assert together[1] != alone[0]


def test_prompts_that_are_not_utf8_have_content_keys_too(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", prompt=text_of_bytes([b"a\xff", b"a\xfe", b"a"]))
    found = keys(scan_inputs(job_spec(row_key={"derive": "content_hash"}), tmp_path))
    assert len(set(found)) == 3


# --- size ---


def test_memory_grows_by_a_few_bytes_a_row(tmp_path: Path) -> None:
    """Python strings for all keys would take about 60 bytes a row; the slope is measured, fixed costs cancel."""
    peaks = []
    for count in (20_000, 120_000):
        write_parquet(tmp_path / "in.parquet", id=list(range(count)), prompt=pa.array(["p"] * count))
        tracemalloc.start()
        inputs = scan_inputs(job_spec(), tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert inputs.num_rows == count
    assert (peaks[1] - peaks[0]) / 100_000 < 36
