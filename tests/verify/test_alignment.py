"""Rows by their place, whatever the files look like; the join at sizes that spill."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_jobs import make_job, read_rows, run, write_input
from support.tiny_runs import forge

from batchgen.errors import RunError, VerifyError
from batchgen.io.manifest import part_name, read_manifest
from batchgen.verify import alignment
from batchgen.verify.alignment import RunRows, align

ROWS, N = 50, 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunRows:
    """Shards of 16 rows, the second in row groups of seven samples. Read it, never change it."""
    folder = tmp_path_factory.mktemp("alignment")
    run(make_job(write_input(folder, ROWS), sampling={"logprobs": 0}), folder / "run", rows_per_shard=16)
    path = folder / "run" / part_name(1)
    pq.write_table(pq.read_table(path), path, row_group_size=7)
    return RunRows(folder / "run", read_manifest(folder / "run"))


@given(st.lists(st.integers(0, ROWS * N - 1), min_size=1, unique=True))
def test_rows_come_in_the_order_that_was_asked_for(finished: RunRows, places: list[int]) -> None:
    taken = finished.take(np.array(places), ["token_ids", "row_key", "no_such_column"])
    assert taken.column_names == ["row_key", "token_ids"]
    everything = read_rows(Path(str(finished.path))).select(["row_key", "token_ids"])
    assert taken.to_pylist() == everything.take(pa.array(places)).to_pylist()


def test_every_row_is_checked_and_has_its_place(finished: RunRows) -> None:
    table = pa.concat_tables(finished.check())
    stored = read_rows(Path(str(finished.path)))
    assert table["place"].to_pylist() == list(range(ROWS * N))
    assert [key.decode() for key in table["key"].to_pylist()] == stored["row_key"].to_pylist()
    leaves = [
        f"{high:016x}{low:016x}" for high, low in zip(*(table[n].to_pylist() for n in ("high", "low")), strict=True)
    ]
    assert leaves == stored["row_hash"].to_pylist()


def test_what_is_made(finished: RunRows) -> None:
    manifest = finished.manifest
    part = RunRows(finished.path, manifest.with_shards([manifest.shards[0], manifest.shards[2]]))
    assert part.has(np.array([0, 31, 32, 63, 64, 95, 96])).tolist() == [True, True, False, False, True, True, False]


def test_a_file_that_goes_while_it_is_read(tmp_path: Path) -> None:
    run(make_job(write_input(tmp_path, 4)), tmp_path / "run")
    rows = RunRows(tmp_path / "run", read_manifest(tmp_path / "run"))
    list(rows.check())
    (tmp_path / "run" / part_name(0)).unlink()
    with pytest.raises(VerifyError, match="changed while it was read"):
        rows.take(np.array([0]), ["row_key"])


def test_a_row_that_is_there_twice(tmp_path: Path) -> None:
    """Its hashes may hold; no pair of it would mean anything."""
    run(make_job(write_input(tmp_path, 4), sampling={"n": 1}), tmp_path / "run")
    forge(tmp_path / "run", "row-1", lambda row: {"row_key": "row-2"})
    rows = RunRows(tmp_path / "run", read_manifest(tmp_path / "run"))
    with pytest.raises(VerifyError):
        align(rows, rows)


@dataclass(frozen=True, slots=True)
class ManyRows(RunRows):
    """Rows that no file holds: numbers from `first` on; the leaves of every third and fifth depend on `first`."""

    first: int = 0
    size: int = 0

    def check(self) -> Iterator[pa.Table]:
        for start in range(0, self.size, 50_000):
            place = np.arange(start, min(start + 50_000, self.size))
            number = place + self.first
            high, low = (number * np.where(number % part, 1, 7 + self.first) for part in (3, 5))
            columns = {"sample": pa.array(number % 2, pa.int32()), "high": high.astype(np.uint64)}
            keys = pa.array([b"a key of some length %d" % key for key in (number // 2).tolist()], pa.binary())
            yield pa.table({"key": keys, **columns, "low": low.astype(np.uint64), "place": place})


def test_many_rows(finished: RunRows) -> None:
    size, shift = 200_000, 10
    a = ManyRows(finished.path, finished.manifest, 0, size)
    b = ManyRows(finished.path, finished.manifest, shift, size)
    found = align(a, b)
    numbers = np.arange(shift, size)
    odd = numbers[(numbers % 3 == 0) | (numbers % 5 == 0)]
    assert found.identical == len(numbers) - len(odd)
    assert np.array_equal(found.both, np.stack([odd, odd - shift], axis=1))
    assert found.only_a.tolist() == list(range(shift))
    assert found.only_b.tolist() == list(range(size - shift, size))


def test_a_key_that_comes_twice_on_either_side(finished: RunRows) -> None:
    @dataclass(frozen=True, slots=True)
    class Twice(ManyRows):
        def check(self) -> Iterator[pa.Table]:
            for table in ManyRows.check(self):
                yield pa.concat_tables([table, table.slice(3, 1)])

    once = ManyRows(finished.path, finished.manifest, 0, 10)
    twice = Twice(finished.path, finished.manifest, 0, 10)
    for pair in ((once, twice), (twice, once)):
        with pytest.raises(VerifyError, match="a row is there more than once"):
            align(*pair)


def test_a_full_disk(finished: RunRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DuckDB tells it when its memory and its folder are used up."""

    def full(*_: object) -> None:
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to offload\nmore")

    monkeypatch.setattr(alignment, "_join", full)
    with pytest.raises(RunError, match="cannot be joined: Out of Memory Error: failed to offload") as caught:
        align(finished, finished)
    assert "TMPDIR" in caught.value.hint
