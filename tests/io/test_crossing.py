"""A second table and drawn rows: every pair once and in order, one draw everywhere, keys that name the pair."""

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.jobs import job_spec, write_parquet

from batchgen.errors import InputError
from batchgen.io import reader
from batchgen.io.crossing import draw, pick
from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import Inputs, read_passthrough, read_rows

PERSONAS: dict[str, Any] = {"key": ["p", "q", "r"], "style": ["terse", "warm", "odd"]}
CROSS = {"path": "personas.parquet", "key": "key", "prefix": "persona_"}


def scan(folder: Path, row_key: dict[str, Any] | None = None, **entry: Any) -> Inputs:
    defaults = {"path": "in-*.parquet", "prompt_template": "{{ topic }}, {{ persona_style }}", "cross": CROSS}
    return scan_inputs(job_spec(defaults | entry, row_key=row_key or {"column": "id"}), folder)


def prompts(inputs: Inputs, start: int = 0, stop: int | None = None) -> list[tuple[str, str | None]]:
    stop = inputs.num_rows if stop is None else stop
    return [(row.row_key, row.prompt) for row in read_rows(inputs, start, stop)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven topics in two files of small row groups, and three personas."""
    for part, ids in enumerate([range(4), range(4, 7)]):
        names = [f"t{i}" for i in ids]
        write_parquet(tmp_path / f"in-{part}.parquet", row_group_size=2, id=list(ids), topic=names)
    write_parquet(tmp_path / "personas.parquet", **PERSONAS)
    return tmp_path


ALL = [(f"{i}/{key}", f"t{i}, {style}") for i in range(7) for key, style in zip(*PERSONAS.values(), strict=True)]


def test_every_pair_once_and_in_order(folder: Path) -> None:
    assert prompts(scan(folder)) == ALL


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_no_slice_and_no_size_of_a_batch_matters(folder: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BATCH_ROWS", rows)
    inputs = scan(folder, passthrough=["persona_style", "topic"])
    for start, stop in combinations(range(0, 22, 3), 2):
        assert prompts(inputs, start, stop) == ALL[start:stop]
    carried = read_passthrough(inputs, 4, 9).to_pylist()
    assert [f"{row['topic']}, {row['persona_style']}" for row in carried] == [prompt for _, prompt in ALL[4:9]]


def test_conditions_and_limits_come_before_pairs(folder: Path) -> None:
    assert prompts(scan(folder, where="id % 2 = 1", limit=2)) == [ALL[i] for i in (3, 4, 5, 9, 10, 11)]


@pytest.mark.parametrize(
    ("row_key", "first"),
    [({"derive": "file_and_row"}, "in-0.parquet:0/p"), ({"column": "topic"}, "t0/p")],
)
def test_keys_name_both_rows(folder: Path, row_key: dict[str, Any], first: str) -> None:
    keys = [key for key, _ in prompts(scan(folder, row_key))]
    assert keys[0] == first
    assert len(set(keys)) == 21


def test_a_draw_of_pairs_keeps_their_order(folder: Path) -> None:
    some = prompts(scan(folder, sample={"rows": 9, "seed": 4}))
    assert len(some) == 9
    assert some == [pair for pair in ALL if pair in some]
    assert some != prompts(scan(folder, sample={"rows": 9, "seed": 5}))


def test_a_draw_of_rows(folder: Path) -> None:
    plain: dict[str, Any] = {"cross": None, "prompt_template": "{{ topic }}"}
    some = [key for key, _ in prompts(scan(folder, **plain, where="id > 0", sample={"rows": 3}))]
    assert len(some) == 3
    assert some == sorted(set(some))
    assert prompts(scan(folder, **plain, sample={"rows": 7})) == prompts(scan(folder, **plain))


def test_the_digest_sees_the_pairs(folder: Path) -> None:
    digests = [scan(folder).digest, scan(folder, sample={"rows": 9}).digest]
    digests.append(scan(folder, sample={"rows": 9, "seed": 1}).digest)
    write_parquet(folder / "personas.parquet", **(PERSONAS | {"style": ["terse", "warm", "even"]}))
    digests.append(scan(folder).digest)
    assert len(set(digests)) == 4


@pytest.mark.parametrize(
    ("table", "entry", "message"),
    [
        ({"key": ["p", "p"]}, {}, "has the key 'p' of row 0"),
        ({"key": ["p", None]}, {}, "the key is null"),
        ({"key": []}, {}, "has 0 rows"),
        ({"key": [1.5]}, {}, "cannot be the row_key column"),
        ({"name": ["p"]}, {}, "no column 'key'"),
        ({"key": ["p"]}, {}, "no column 'persona_style'"),
        ({"key": ["p"], "id": [1]}, {"cross": CROSS | {"prefix": ""}}, "has a column 'id', and so has the second"),
        (PERSONAS, {"sample": {"rows": 22}}, "inputs[0].sample.rows: asks for 22 of 21 pairs"),
        (PERSONAS, {"cross": CROSS | {"path": "none.parquet"}}, "there is no such file"),
    ],
)
def test_what_cannot_be_crossed(folder: Path, table: dict[str, Any], entry: dict[str, Any], message: str) -> None:
    write_parquet(folder / "personas.parquet", **table)
    with pytest.raises(InputError) as caught:
        scan(folder, **entry)
    assert message in str(caught.value)


def test_a_draw_is_the_same_on_every_machine() -> None:
    assert draw(10, 4, 0).tolist() == [1, 5, 6, 8]
    assert draw(10**12, 3, 7).tolist() == [538564063555, 617286420787, 678512996987]


def test_every_set_is_as_likely() -> None:
    drawn = Counter(tuple(draw(5, 2, seed).tolist()) for seed in range(2000))
    assert set(drawn) == set(combinations(range(5), 2))
    assert all(140 < count < 260 for count in drawn.values())  # 200 each, give or take four sigma


def test_a_generator_that_only_takes_the_last_is_noticed() -> None:
    """The counter-test of the one above."""
    drawn = Counter((3, 4) for _ in range(2000))
    assert set(drawn) != set(combinations(range(5), 2))


def test_pairs_are_cut_by_file() -> None:
    found = pick([2, 0, 1], 2, np.array([1, 2, 5]))
    assert [(rows.tolist(), index.tolist()) for rows, index in found] == [([0, 1], [1, 0]), ([], []), ([0], [1])]
