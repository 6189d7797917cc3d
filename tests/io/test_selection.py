"""`where`: the same rows every time, from the row alone, and clear words for what is no condition."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from support.jobs import text_of_bytes, write_parquet

from batchgen.errors import InputError
from batchgen.io.selection import RowSelector

COLUMNS = ["id", "name", "tags", "meta", "made"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "secret.parquet", x=[1])
    return write_parquet(
        tmp_path / "it's in.parquet",
        id=[1, 2, 3, None],
        name=["ann", "bob", None, "dee"],
        tags=[["a"], ["b", "a"], [], None],
        meta=[{"level": 1}, {"level": 2}, None, {"level": None}],
        made=pa.array([0, 1, 2, 3], pa.timestamp("us", "UTC")),
    )


def select(path: Path, condition: str, columns: Sequence[str] = COLUMNS, where: str = "inputs[0].where") -> list[int]:
    with RowSelector([path], condition, where) as selector:
        return [int(row) for row in selector.rows(path, list(columns))]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("id > 1", [1, 2]),
        ("ID > 1 OR name = 'dee'", [1, 2, 3]),
        ("name LIKE 'a%' -- a comment", [0]),
        ("list_contains(tags, 'a')", [0, 1]),
        ("len(list_filter(tags, lambda x: x = 'b')) = 1", [1]),
        ("meta.level = 2", [1]),
        ("made >= TIMESTAMPTZ '1970-01-01 00:00:00.000002+00'", [2, 3]),
        ("id IN (1, 3)", [0, 2]),
        ("true", [0, 1, 2, 3]),
        ("false", []),
    ],
)
def test_conditions(path: Path, condition: str, rows: list[int]) -> None:
    assert select(path, condition) == rows


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("id >", "no SQL condition: syntax error"),
        ("id > 1; DROP TABLE t", "no SQL condition"),
        ("id > 1) OR (true", "no SQL condition"),
        ("true ORDER BY id", "syntax error"),
        ("true LIMIT 1", "syntax error"),
        ("nmae = 'ann'", "no column 'nmae' in the input"),
        ("name", "Could not convert string"),
        ("count(*) > 1", "aggregates"),
        ("no_such(id)", "no_such"),
        ("random() < 0.5", "random() depends on more than the row"),
        ("uuid() IS NOT NULL", "uuid() depends on more than the row"),
        ("now() > made", "now() depends on more than the row"),
        ("age(made) > INTERVAL 1 DAY", "age() depends on more than the row"),
        ("current_date > DATE '2020-01-01'", "current_date"),
        ("current_timestamp > made", "current_timestamp"),
        ("current_setting('TimeZone') = 'UTC'", "current_setting() depends on more than the row"),
        ("EXISTS (SELECT * FROM 'secret.parquet')", "cannot hold a subquery"),
        ("id IN (SELECT size FROM read_text('/etc/hostname'))", "cannot hold a subquery"),
    ],
)
def test_what_is_no_condition(path: Path, condition: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        select(path, condition)
    assert str(caught.value).startswith("inputs[0].where: ")
    assert message in str(caught.value)


def test_an_unknown_column_gets_the_nearest_name(path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'name'"):
        select(path, "nmae = 'ann'")


def test_text_that_is_not_utf8_is_an_error_only_where_the_condition_reads_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=[1, 2], name=text_of_bytes([b"a", b"\xff"]))
    assert select(path, "id > 1") == [1]
    with pytest.raises(InputError, match=r"inputs\[0\].where"):
        select(path, "name <> 'b'")


def test_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    assert select(Path(path.name), "id = 1") == [0]


def test_folders_that_look_like_columns_are_only_folders(tmp_path: Path) -> None:
    (tmp_path / "name=ann").mkdir()
    path = write_parquet(tmp_path / "name=ann" / "in.parquet", id=[1, 2], name=["ann", "bob"])
    assert select(path, "name = 'bob'") == [1]


@pytest.mark.parametrize("name", ["in[1].parquet", "i*.parquet", "in?.parquet", "[!a].parquet"])
def test_names_that_look_like_globs_are_only_names(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / "in1.parquet", id=[9, 9, 9])
    assert select(write_parquet(tmp_path / name, id=[8, 9]), "id = 9") == [1]


@pytest.mark.parametrize("name", ["k", "K", "k_1"])  # DuckDB would take k_1 for the second of K and k
def test_columns_that_differ_only_in_case(tmp_path: Path, name: str) -> None:
    path = write_parquet(tmp_path / "in.parquet", K=[1, 2], k=[2, 1], k_1=[3, 3], id=[1, 2])
    columns = ["K", "k", "k_1", "id"]
    assert select(path, "id = 2", columns) == [1]
    with pytest.raises(
        InputError, match=r"w: columns 'K' and 'k' differ only in case, and SQL cannot .*\n  rename one"
    ):
        select(path, f"id = 2 AND {name} = 1", columns, "w")


def test_a_column_with_the_name_of_the_row_number(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in.parquet", id=[1], File_Row_Number=[7])
    with pytest.raises(InputError, match="w: cannot be used on a file with a column named file_row_number"):
        select(path, "id = 1", ["id", "File_Row_Number"], "w")


def test_one_selector_reads_all_files_of_its_entry_and_no_other(tmp_path: Path) -> None:
    names = ["a.parquet", "b'.parquet", "c[1].parquet"]
    paths = [write_parquet(tmp_path / name, id=[number, 1]) for number, name in enumerate(names)]
    other = write_parquet(tmp_path / "c1.parquet", id=[1, 1])
    with RowSelector(paths, "id = 1", "w") as selector:
        assert [selector.rows(path, ["id"]).tolist() for path in paths] == [[1], [0, 1], [1]]
        with pytest.raises(InputError, match="Permission"):
            selector.rows(other, ["id"])


def test_each_file_is_held_to_its_own_columns(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "a.parquet", id=[1], score=[2])
    second = write_parquet(tmp_path / "b.parquet", id=[1])
    with RowSelector([first, second], "score > 1", "w") as selector:
        assert selector.rows(first, ["id", "score"]).tolist() == [0]
        with pytest.raises(InputError, match="w: no column 'score' in the input"):
            selector.rows(second, ["id"])
