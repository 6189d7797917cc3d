"""Reading rows: any slice in order, every Arrow form of a column, and bad cells that cost their own row only."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.jobs import job_spec, text_of_bytes, write_parquet

from batchgen.errors import InputError
from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import InputRow, Inputs, read_passthrough, read_rows


def scan(base_dir: Path, **entry: Any) -> Inputs:
    defaults = {"path": "in.parquet", "columns": {"prompt": "prompt"}}
    return scan_inputs(job_spec(defaults | entry), base_dir)


def rows_of(base_dir: Path, **columns: str) -> list[InputRow]:
    inputs = scan(base_dir, columns=columns)
    return list(read_rows(inputs, 0, inputs.num_rows))


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """3,000 and 1,700 rows in row groups of 700, longer than a batch; every third is left out."""
    folder = tmp_path_factory.mktemp("numbered")
    for part, (start, stop) in enumerate([(0, 3000), (3000, 4700)]):
        ids = list(range(start, stop))
        prompts = [f"prompt {i}" for i in ids]
        write_parquet(folder / f"part-{part}.parquet", row_group_size=700, id=ids, prompt=prompts, x=ids)
    return scan(folder, path="part-*.parquet", where="id % 3 <> 0", passthrough=["x"])


EXPECTED = [i for i in range(4700) if i % 3]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, len(EXPECTED)), (0, 1), (0, 0), (466, 468), (1990, 2010), (2000, 2001), (3000, 3133)]
)
def test_any_slice_in_order(numbered: Inputs, start: int, stop: int) -> None:
    assert numbered.num_rows == len(EXPECTED)
    rows = list(read_rows(numbered, start, stop))
    assert [row.row_key for row in rows] == [str(i) for i in EXPECTED[start:stop]]
    assert [row.prompt for row in rows] == [f"prompt {i}" for i in EXPECTED[start:stop]]
    assert read_passthrough(numbered, start, stop).column("x").to_pylist() == EXPECTED[start:stop]


def test_slices_join_to_the_whole(numbered: Inputs) -> None:
    cuts = [0, 7, 500, 1999, 2002, len(EXPECTED)]
    pieces = [row for a, b in pairwise(cuts) for row in read_rows(numbered, a, b)]
    assert pieces == list(read_rows(numbered, 0, len(EXPECTED)))


def test_rows_say_where_they_are(numbered: Inputs) -> None:
    [first, second] = read_rows(numbered, 1999, 2001)
    assert (first.where, second.where) == ("part-0.parquet row 2999", "part-1.parquet row 1")
    assert numbered.locate(2000).endswith("part-1.parquet row 1")


def test_a_large_row_group_is_streamed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=list(range(5000)), prompt=["p"] * 5000)
    rows = read_rows(scan(tmp_path), 4000, 4003)
    assert [row.row_key for row in rows] == ["4000", "4001", "4002"]


# --- the forms of a column ---

TEXTS = ["hello", None, "", "wörld"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(TEXTS, pa.string()),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_every_form_of_text(tmp_path: Path, array: pa.Array) -> None:
    write_parquet(tmp_path / "in.parquet", id=pa.array(["a", "b", "c", "d"]).cast(array.type), prompt=array)
    rows = rows_of(tmp_path, prompt="prompt")
    assert [row.prompt for row in rows] == TEXTS
    assert [row.row_key for row in rows] == ["a", "b", "c", "d"]
    assert all(row.error is None and row.messages is None for row in rows)


@pytest.mark.parametrize(
    "type_",
    [pa.list_(pa.int32()), pa.large_list(pa.uint64()), pa.list_(pa.int64(), 2), pa.list_(pa.int8())],
    ids=str,
)
def test_every_form_of_token_ids(tmp_path: Path, type_: pa.DataType) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2], ids=pa.array([[5, 6], None], type_))
    assert [row.prompt_token_ids for row in rows_of(tmp_path, prompt_token_ids="ids")] == [[5, 6], None]


def test_a_column_that_is_null_everywhere(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], prompt=pa.nulls(1))
    [row] = rows_of(tmp_path, prompt="prompt")
    assert row == InputRow("1", "in.parquet row 0")


def test_made_up_nulls_are_dropped_and_real_ones_kept(tmp_path: Path) -> None:
    call = {"name": "f", "arguments": {"city": "Bern"}}
    messages = [
        [{"role": "user", "content": "hi", "name": "ann"}],
        [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "go"}],
        None,
        [],
        [None],
    ]
    tools = [[{"name": "f", "args": {"city": "s"}}], [{"name": "g", "args": {"day": "d"}}], None, [], [None]]
    write_parquet(tmp_path / "in.parquet", id=[1, 2, 3, 4, 5], m=messages, t=tools)
    rows = rows_of(tmp_path, messages="m", tools="t")
    assert [row.messages for row in rows] == messages
    assert [row.tools for row in rows] == tools
    stored = pq.read_table(tmp_path / "in.parquet").column("t").to_pylist()
    assert stored[0] == [{"name": "f", "args": {"city": "s", "day": None}}]


def test_large_lists_of_structs_with_dictionaries(tmp_path: Path) -> None:
    roles = pa.array(["user", "assistant", "user"]).dictionary_encode()
    structs = pa.StructArray.from_arrays([roles, pa.array(["a", "b", "c"], pa.large_string())], ["role", "content"])
    column = pa.LargeListArray.from_arrays(pa.array([0, 2, 3], pa.int64()), structs)
    write_parquet(tmp_path / "in.parquet", id=[1, 2], m=column)
    [first, second] = rows_of(tmp_path, messages="m")
    assert first.messages == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert second.messages == [{"role": "user", "content": "c"}]


# --- cells that cannot be read ---


def test_a_prompt_that_is_not_utf8_costs_its_own_row(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2, 3], prompt=text_of_bytes([b"a", b"\xff", b"\xed\xb2\x80"]))
    good, bad, surrogate = rows_of(tmp_path, prompt="prompt")
    assert (good.prompt, good.error) == ("a", None)
    for row in (bad, surrogate):
        assert row.prompt is None
        assert row.error is not None
        assert (row.error.code, row.error.message) == ("prompt_encoding", "prompt holds bytes that are not UTF-8")


def test_a_message_that_is_not_utf8_costs_its_own_row(tmp_path: Path) -> None:
    contents = text_of_bytes([b"fine", b"\xc3", b"fine too"])
    structs = pa.StructArray.from_arrays([pa.array(["user"] * 3), contents], ["role", "content"])
    write_parquet(tmp_path / "in.parquet", id=[1, 2, 3], m=pa.ListArray.from_arrays([0, 1, 2, 3], structs))
    rows = rows_of(tmp_path, messages="m")
    assert [row.error and row.error.code for row in rows] == [None, "prompt_encoding", None]
    assert [row.messages and row.messages[0]["content"] for row in rows] == ["fine", None, "fine too"]


# --- files that change ---


def test_a_file_that_changed_since_the_scan(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=[1], prompt=["p"])
    inputs = scan(tmp_path)
    os.utime(path, ns=(0, 0))
    with pytest.raises(InputError, match="has changed since"):
        list(read_rows(inputs, 0, 1))


def test_a_file_that_is_written_into_while_it_is_read(tmp_path: Path) -> None:
    """Another file of the same layout, byte for byte in the place of the first: no row of it is given out."""

    def write(name: str, word: str) -> Path:
        table = pa.table({"id": range(1000), "prompt": [f"{word} {i:05}" for i in range(1000)]})
        pq.write_table(table, tmp_path / name, row_group_size=10, compression="none", use_dictionary=False)
        return tmp_path / name

    path, other = write("in.parquet", "prompt"), write("other.parquet", "PROMPT").read_bytes()
    assert path.stat().st_size == len(other)
    rows = read_rows(scan(tmp_path), 0, 1000)
    found = [next(rows).prompt]
    with path.open("r+b") as file:
        file.write(other)
    with pytest.raises(InputError, match="has changed since"):
        found.extend(row.prompt for row in rows)
    assert found == [f"prompt {i:05}" for i in range(len(found))]
    assert len(found) < 1000


def test_a_file_that_went_away(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=[1], prompt=["p"])
    inputs = scan(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        list(read_rows(inputs, 0, 1))


# --- passthrough ---


def test_passthrough_keeps_nested_values_and_unites_inputs(tmp_path: Path) -> None:
    meta = [{"tags": ["a", None], "w": 0.5}, None]
    write_parquet(tmp_path / "a.parquet", id=[1, 2], prompt=["p"] * 2, meta=meta, kind=["x", None])
    kinds = pa.array(["y"]).dictionary_encode()
    write_parquet(tmp_path / "b.parquet", id=[3], prompt=["p"], kind=kinds, seed64=pa.array([2**63 + 1], pa.uint64()))
    prompt = {"columns": {"prompt": "prompt"}}
    first = prompt | {"path": "a.parquet", "passthrough": ["meta", "kind"]}
    second = prompt | {"path": "b.parquet", "passthrough": ["kind", "seed64"]}
    inputs = scan_inputs(job_spec(first, second), tmp_path)
    table = read_passthrough(inputs, 0, 3)
    assert table.schema == inputs.passthrough
    assert table.to_pydict() == {
        "meta": [*meta, None],
        "kind": ["x", None, "y"],
        "seed64": [None, None, 2**63 + 1],
    }
    assert read_passthrough(inputs, 1, 1).schema == inputs.passthrough


def test_a_passthrough_column_that_is_null_in_one_file_takes_the_type_of_the_other(tmp_path: Path) -> None:
    write_parquet(tmp_path / "part-1.parquet", id=[1], prompt=["p"], x=pa.nulls(1))
    write_parquet(tmp_path / "part-2.parquet", id=[2], prompt=["p"], x=["v"])
    inputs = scan(tmp_path, path="part-*.parquet", passthrough=["x"])
    assert inputs.passthrough.field("x").type == pa.string()
    assert read_passthrough(inputs, 0, 2).column("x").to_pylist() == [None, "v"]


def test_no_passthrough_has_the_rows_of_no_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2], prompt=["p"] * 2)
    assert read_passthrough(scan(tmp_path), 0, 2).num_columns == 0
