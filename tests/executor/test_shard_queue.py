"""The order of shards: long ones first, and those that are alike in the order in which they are read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.jobs import job_spec

from batchgen.executor.shard_queue import ShardQueue, prompt_bytes
from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import Inputs
from batchgen.plan import Plan, Shard, make_plan


def planned(folder: Path, groups: list[tuple[int, int]], per_shard: int, **entry: Any) -> tuple[Inputs, Plan]:
    """One file; of each row group the rows, and how long a prompt is."""
    names = iter(range(sum(rows for rows, _ in groups)))
    with pq.ParquetWriter(folder / "in.parquet", pa.schema({"id": pa.int64(), "prompt": pa.string()})) as file:
        for rows, size in groups:
            ids = [next(names) for _ in range(rows)]
            file.write_table(pa.table({"id": ids, "prompt": [f"{i:0{size}}" for i in ids]}), row_group_size=rows)
    spec = job_spec({"path": "in.parquet", "columns": {"prompt": "prompt"}, **entry})
    inputs = scan_inputs(spec, folder)
    return inputs, make_plan(spec, inputs, per_shard)


def order(inputs: Inputs, plan: Plan) -> list[int]:
    queue = ShardQueue(plan.shards, prompt_bytes(inputs, plan))
    return [queue.take().index for _ in range(len(queue))]


def test_long_shards_come_first(tmp_path: Path) -> None:
    found = planned(tmp_path, [(40, 30), (40, 900), (40, 200)], 20)
    assert order(*found) == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(("rows", "per_shard"), [(1000, 7), (4999, 3), (3000, 977)])
def test_shards_of_a_row_group_are_made_in_the_order_in_which_they_are_read(
    tmp_path: Path, rows: int, per_shard: int
) -> None:
    inputs, plan = planned(tmp_path, [(rows, 50)], per_shard)
    full = plan.num_shards - 1
    assert order(inputs, plan)[:full] == list(range(full))
    assert len(set(prompt_bytes(inputs, plan)[:full].tolist())) == 1


def test_row_groups_that_are_much_alike_are_read_as_one(tmp_path: Path) -> None:
    inputs, plan = planned(tmp_path, [(100, 50), (100, 51), (100, 52), (100, 50)], 30)
    assert order(inputs, plan)[:13] == list(range(13))


def test_a_shard_over_two_row_groups_lies_between_them(tmp_path: Path) -> None:
    inputs, plan = planned(tmp_path, [(15, 100), (15, 1000)], 10)
    short, both, long = prompt_bytes(inputs, plan)
    assert short < both < long
    assert both == pytest.approx(5 * 104 + 5 * 1004, rel=0.2)


def test_only_rows_that_are_taken_count(tmp_path: Path) -> None:
    inputs, plan = planned(tmp_path, [(50, 1000), (50, 10), (50, 400)], 10, where="id < 10 OR id >= 100")
    assert plan.num_shards == 6
    assert order(inputs, plan) == [0, 1, 2, 3, 4, 5]
    assert prompt_bytes(inputs, plan)[0] == pytest.approx(10_040, rel=0.1)


def test_counter_weights_that_differ_by_a_rounding_would_break_the_order() -> None:
    shards = [Shard(index, 10 * index, 10 * index + 10) for index in range(40)]
    noisy = np.diff(np.linspace(0.0, 1.0, 41) * 1e6 / 3)
    queue = ShardQueue(shards, noisy)
    assert [queue.take().index for _ in range(40)] != list(range(40))


def test_what_is_put_back_comes_first(tmp_path: Path) -> None:
    shards = [Shard(index, index, index + 1) for index in range(4)]
    queue = ShardQueue(shards, np.array([1.0, 4.0, 2.0, 3.0]))
    first, second = queue.take(), queue.take()
    queue.put_back([first, second])
    assert [queue.take().index for _ in range(len(queue))] == [1, 3, 2, 0]
