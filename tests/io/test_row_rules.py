"""What the job says of every row, held against rows that break one rule each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.fake_jobs import make_job, read_rows, run, write_input
from support.run_damage import put

from batchgen.errors import RunError
from batchgen.io.manifest import Manifest, read_manifest
from batchgen.io.row_rules import RULED, RowRules
from batchgen.seeds import sample_seed


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    run(make_job(write_input(folder / "in", 10), seed=2**64 - 1), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def manifest(out: Path) -> Manifest:
    return read_manifest(out)


def judged(out: Path) -> pa.Table:
    return read_rows(out).select(RULED).combine_chunks()


def broken(manifest: Manifest, table: pa.Table, sizes: list[int]) -> list[int]:
    rules = RowRules.of(manifest)
    return [int(row) for row in rules.broken(table, table["row_key"].to_pylist(), sizes).nonzero()[0]]


def faults(manifest: Manifest, table: pa.Table) -> list[tuple[int, str]]:
    return list(RowRules.of(manifest).faults(table, table["row_key"].to_pylist()))


def test_sound_rows_break_no_rule(out: Path, manifest: Manifest) -> None:
    table = judged(out)
    assert broken(manifest, table, [16, 4]) == [] == faults(manifest, table)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("seed", 2**64 - 1, "its seed is 18446744073709551615, and the job gives it "),
        ("seed", None, "its seed is None, and"),
        ("params_hash", "f" * 32, "its params_hash is not"),
        ("params_hash", None, "its params_hash is not"),
        ("sample_index", 0, "is where sample 1"),
        ("sample_index", -1, "is where sample 1"),
        ("sample_index", None, "is where sample 1"),
        ("row_key", "row-0", "is where sample 1"),
    ],
)
def test_a_row_that_breaks_a_rule(out: Path, manifest: Manifest, column: str, value: Any, said: str) -> None:
    table = put(column, 5, value)(judged(out))
    assert broken(manifest, table, [20]) == [5]
    [(row, detail)] = faults(manifest, table)
    assert row == 5
    assert detail.startswith(said)


def test_another_row_key_needs_other_seeds(out: Path, manifest: Manifest) -> None:
    table = put("row_key", 5, "other")(put("row_key", 4, "other")(judged(out)))
    assert broken(manifest, table, [20]) == [4, 5]
    for index in range(2):
        table = put("seed", 4 + index, sample_seed(2**64 - 1, "other", index))(table)
    assert broken(manifest, table, [20]) == []


def test_every_file_begins_with_sample_0(out: Path, manifest: Manifest) -> None:
    table = judged(out)
    assert broken(manifest, pa.concat_tables([table.slice(0, 3), table.slice(4)]), [3, 16]) == []
    assert broken(manifest, table, [3, 17]) == list(range(3, 20))


def test_the_second_file_may_begin_with_the_key_that_the_first_ends_with(out: Path, manifest: Manifest) -> None:
    table = judged(out)
    assert broken(manifest, pa.concat_tables([table.slice(0, 2), table.slice(0, 2)]), [2, 2]) == []


def test_no_rows(out: Path, manifest: Manifest) -> None:
    assert broken(manifest, judged(out).slice(0, 0), [0, 0]) == []


def test_a_manifest_that_tells_nothing_of_rows(manifest: Manifest) -> None:
    for edited, said in (
        (replace(manifest, spec={"seed": "x"}), "its spec is not that of a job"),
        (replace(manifest, spec={**manifest.spec, "numerics": "none"}), "its spec is not that of a job"),
        (replace(manifest, columns=(*manifest.columns[1:], manifest.columns[0])), "its columns are not those"),
    ):
        with pytest.raises(RunError, match=said):
            RowRules.of(edited)
