"""Diversity against a plain count, however the rows are cut into batches."""

import random
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, run, write_input

from batchgen.io.manifest import read_manifest
from batchgen.records import Completion, Request
from batchgen.report.groups import LEAST, Diversity, Groups, answer_bytes, diversity_of, in_a_line


def answers(seed: int, groups: int, n: int) -> list[list[int] | None]:
    """Short answers of two tokens at most, so that many are equal; some prompts fail, whole or in part."""
    chance = random.Random(seed)
    rows: list[list[int] | None] = [
        [chance.randrange(2) for _ in range(chance.randrange(3))] for _ in range(groups * n)
    ]
    for _ in range(groups // 9):
        rows[chance.randrange(len(rows))] = None
    return rows


@pytest.mark.parametrize("n", [2, 3, 8, 16])
@pytest.mark.parametrize("batch", [1, 5, 16, 1000])
def test_against_a_plain_count(n: int, batch: int) -> None:
    rows = answers(n, 60, n)
    groups = Groups(n)
    array = pa.array(rows, pa.list_(pa.int32()))
    for start in range(0, len(rows), batch):
        groups.add(answer_bytes(array.slice(start, batch)))
    found = groups.result()
    expected = [0] * n
    least = []
    for index in range(60):
        group = rows[n * index : n * index + n]
        if None in group:
            continue
        alike = [group.count(answer) for answer in group]
        distinct = len({tuple(answer or ()) for answer in group})
        expected[distinct - 1] += 1
        if distinct < n:
            least.append((distinct, index, max(alike)))
    assert found.distinct == tuple(expected)
    assert found.left_out == 60 - sum(expected)
    assert [(group.distinct, group.index, group.most_alike) for group in found.least] == sorted(least)[:LEAST]


def test_ids_count_and_not_their_text() -> None:
    groups = Groups(2)
    groups.add(answer_bytes(pa.array([[1, 23], [12, 3], [], [], [0], [0, 0]], pa.list_(pa.int32()))))
    assert groups.result().distinct == (1, 2)


def test_a_group_of_many_waits_for_its_last() -> None:
    groups = Groups(4)
    groups.add([b"a"] * 7)
    assert groups.result().distinct == (1, 0, 0, 0)


def test_arrays_that_are_slices_of_others() -> None:
    whole = pa.array([[9], [1, 2], None, [3], []], pa.list_(pa.int32()))
    assert answer_bytes(whole[1:4]) == [(1).to_bytes(4, "little") + (2).to_bytes(4, "little"), None, b"\3\0\0\0"]
    inner = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array([7, 8, 9, 10], pa.int32())[1:])
    assert answer_bytes(inner) == [b"\10\0\0\0", b"\11\0\0\0\12\0\0\0"]
    assert answer_bytes(pa.array([], pa.list_(pa.int32()))) == []
    assert answer_bytes(pa.array([None, None], pa.list_(pa.int32()))) == [None, None]


@pytest.mark.parametrize(
    ("distinct", "line"),
    [
        ((0, 0, 4), "3 of 3 answers to a prompt differ; no prompt got one answer alone"),
        ((1, 0, 2), "2.33 of 3 answers to a prompt differ; 1 of 3 prompts got one answer 3 times"),
        ((1500, 0, 0), "1 of 3 answers to a prompt differ; 1,500 of 1,500 prompts got one answer 3 times"),
        ((0, 0, 0), "no prompt has 3 answers"),
    ],
)
def test_in_a_line(distinct: tuple[int, ...], line: str) -> None:
    assert in_a_line(Diversity(3, distinct, (), 0)) == line


def test_of_a_run(tmp_path: Path) -> None:
    """The samples of a prompt differ; where all were one, it would be seen: as when every sample had one seed."""
    run(make_job(write_input(tmp_path, rows=9, bad=[2]), sampling={"n": 4}), tmp_path / "run")
    found = diversity_of(tmp_path / "run", read_manifest(tmp_path / "run"))
    assert found == Diversity(4, (0, 0, 0, 8), (), 1)
    job = make_job(tmp_path, sampling={"n": 4})
    run(job, tmp_path / "same", OneSeed())
    found = diversity_of(tmp_path / "same", read_manifest(tmp_path / "same"))
    assert found is not None
    assert found.distinct == (8, 0, 0, 0)
    run(make_job(tmp_path, sampling={"n": 1}), tmp_path / "one")
    assert diversity_of(tmp_path / "one", read_manifest(tmp_path / "one")) is None


class OneSeed(FakeEngine):
    """All samples are drawn alike."""

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        """Whatever seed is asked for."""
        yield from super().generate(request and replace(request, seed=1) for request in requests)
