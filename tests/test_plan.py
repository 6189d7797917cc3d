"""Plans: every row in one shard, whatever the size of a shard; names of the index alone."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.jobs import job_spec, write_parquet

from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import read_rows
from batchgen.plan import Plan, Shard, fitting_rows_per_shard, make_plan


def plan_of(num_rows: int, rows_per_shard: int) -> Plan:
    return Plan("job", "inputs", num_rows, 2, rows_per_shard)


@pytest.mark.parametrize("num_rows", [1, 2, 9, 10, 11, 100])
@pytest.mark.parametrize("rows_per_shard", [1, 2, 3, 10, 1000])
def test_shards_cover_every_row_once_in_order(num_rows: int, rows_per_shard: int) -> None:
    plan = plan_of(num_rows, rows_per_shard)
    shards = list(plan.shards)
    assert len(shards) == plan.num_shards
    assert [row for shard in shards for row in range(shard.start, shard.stop)] == list(range(num_rows))
    assert all(shard.num_rows == rows_per_shard for shard in shards[:-1])
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert shards == [plan.shard(index) for index in range(len(shards))]


def test_a_plan_of_many_rows_costs_nothing() -> None:
    plan = plan_of(10**12, 1)
    assert next(plan.shards) == Shard(0, 0, 1)
    assert plan.shard(10**12 - 1).stop == 10**12
    assert plan.num_samples == 2 * 10**12


@pytest.mark.parametrize("index", [-1, 5])
def test_shards_that_are_not_there(index: int) -> None:
    with pytest.raises(IndexError):
        plan_of(10, 2).shard(index)


def test_every_field_moves_the_digest() -> None:
    plan = plan_of(10, 2)
    others: dict[str, Any] = {"job_fingerprint": "x", "inputs_digest": "x", "num_rows": 11, "n": 3, "rows_per_shard": 3}
    assert set(others) == {field.name for field in dataclasses.fields(Plan)}
    plans = [plan, *(dataclasses.replace(plan, **{name: value}) for name, value in others.items())]
    assert len({other.digest for other in plans}) == len(plans)


@pytest.mark.parametrize(
    ("num_rows", "expected"),
    [(1, 64), (656, 64), (64 * 1024, 64), (64 * 1024 + 1, 65), (1_000_000, 977), (10**7, 3162), (10**9, 16_384)],
)
def test_shards_fit_the_job(num_rows: int, expected: int) -> None:
    assert fitting_rows_per_shard(num_rows) == expected


def test_the_manifest_grows_with_the_root_of_the_job() -> None:
    for num_rows in (1, 10**4, 10**5, 10**6, 2**20, 10**7, 10**8):
        shards = plan_of(num_rows, fitting_rows_per_shard(num_rows)).num_shards
        assert shards <= max(1024, num_rows**0.5 + 2)


def test_a_larger_job_has_no_smaller_shards_and_never_fewer() -> None:
    sizes = [fitting_rows_per_shard(2**power) for power in range(34)]
    counts = [plan_of(2**power, size).num_shards for power, size in enumerate(sizes)]
    assert sizes == sorted(sizes)
    assert counts == sorted(counts)


def test_make_plan(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=list(range(7)), prompt=["p"] * 7)
    spec = job_spec(sampling={"n": 3})
    inputs = scan_inputs(spec, tmp_path)
    plan = make_plan(spec, inputs, 3)
    assert (plan.num_rows, plan.num_samples, plan.num_shards) == (7, 21, 3)
    assert plan == make_plan(spec, scan_inputs(spec, tmp_path), 3)
    rows = [row.row_key for shard in plan.shards for row in read_rows(inputs, shard.start, shard.stop)]
    assert rows == [str(i) for i in range(7)]
    assert make_plan(spec, inputs).rows_per_shard == 64
    with pytest.raises(ValueError, match="at least 1"):
        make_plan(spec, inputs, 0)
