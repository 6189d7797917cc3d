"""Lists of any length against lists of any length, by their bits."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.verify.row_pairs import at, compare, differing_columns, first_difference, ragged

IDS = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 3), max_size=6)), max_size=12)


def column(values: Any, type_: pa.DataType) -> pa.ChunkedArray:
    """In two chunks, the second a slice."""
    if not values:
        return pa.chunked_array([pa.array([], type_)])
    half = len(values) // 2
    second = pa.array([values[0], *values[half:]], type_)[1:]
    return pa.chunked_array([pa.array(values[:half], type_), second])


def first(a: list[Any] | None, b: list[Any] | None) -> int:
    left, right = a or [], b or []
    if left == right:
        return -1
    same = [one == other for one, other in zip(left, right, strict=False)]
    return same.index(False) if False in same else min(len(left), len(right))


@given(IDS, IDS)
def test_the_first_difference_of_lists(left: list[Any], right: list[Any]) -> None:
    size = min(len(left), len(right))
    a, b = (column(values[:size], pa.list_(pa.int32())) for values in (left, right))
    found = first_difference(ragged(a), ragged(b)).tolist()
    assert found == [first(*pair) for pair in zip(left, right, strict=False)]


@given(IDS, st.lists(st.integers(-1, 7), min_size=12, max_size=12))
def test_an_element_of_each_list(lists: list[Any], positions: list[int]) -> None:
    positions = positions[: len(lists)]
    found = at(column(lists, pa.list_(pa.int32())), np.array(positions, np.int64)).to_pylist()
    assert found == [
        cells[at] if cells and 0 <= at < len(cells) else None for cells, at in zip(lists, positions, strict=True)
    ]


@pytest.mark.parametrize(
    ("a", "b", "position"),
    [
        ([0.0], [-0.0], 0),
        ([-1.5, 0.0], [-1.5, 0.0], -1),
        ([1.0, float("-inf")], [1.0, float("-inf")], -1),
        ([1.0, 1.0000001], [1.0, 1.0], 1),
        ([], [], -1),
        (None, None, -1),
    ],
)
def test_floats_differ_by_their_bits(a: Any, b: Any, position: int) -> None:
    left, right = (column([cell, [2.0]], pa.list_(pa.float32())) for cell in (a, b))
    assert first_difference(ragged(left), ragged(right)).tolist() == [position, -1]


def test_nans_have_payloads() -> None:
    bits = np.array([0x7FC00000, 0x7FC00001, 0x7FC00000], np.uint32).view(np.float32)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(bits))
    a = pa.chunked_array([lists.take(pa.array([0, 0]))])
    b = pa.chunked_array([lists.take(pa.array([1, 2]))])
    assert first_difference(ragged(a), ragged(b)).tolist() == [0, -1]


def rows(**changes: Any) -> pa.Table:
    """One sound row, with some of its values changed."""
    values: dict[str, tuple[Any, pa.DataType]] = {
        "seed": (2**64 - 1, pa.uint64()),
        "status": ("ok", pa.string()),
        "error_code": (None, pa.string()),
        "error_message": (None, pa.string()),
        "prompt_token_ids": ([1, 2], pa.list_(pa.int32())),
        "text": ("a", pa.string()),
        "token_ids": ([5, 6, 7], pa.list_(pa.int32())),
        "finish_reason": ("stop", pa.string()),
        "stop_reason": (None, pa.string()),
        "logprobs": ([-1.0, -2.0, -3.0], pa.list_(pa.float32())),
        "top_logprobs_ids": ([[5], [6], [7]], pa.list_(pa.list_(pa.int32()))),
        "top_logprobs_values": ([[-1.0], [-2.0], [0.0]], pa.list_(pa.list_(pa.float32()))),
        "params_hash": ("p", pa.string()),
    }
    return pa.table({name: pa.array([changes.get(name, value)], type_) for name, (value, type_) in values.items()})


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"seed": 2**64 - 2}, "seed", True),
        ({"params_hash": "q"}, "params", True),
        ({"prompt_token_ids": [1, 3]}, "prompt", 1),
        ({"prompt_token_ids": [1]}, "prompt", 1),
        ({"prompt_token_ids": []}, "prompt", 0),
        ({"prompt_token_ids": None}, "prompt", -1),  # no prompt is no other prompt: the row is an error
        ({"token_ids": [5, 6]}, "tokens", 2),
        ({"token_ids": []}, "tokens", 0),
        ({"status": "error", "token_ids": None}, "tokens", -1),
        ({"status": "error", "token_ids": None}, "failed_b", True),
        ({"error_code": "template"}, "error", True),
        ({"logprobs": [-1.0, -2.0, 3.0]}, "logprobs", 2),
        ({"top_logprobs_ids": [[5], [6, 7], [7]]}, "logprobs", 1),
        ({"top_logprobs_values": [[-1.0], [-2.0], [-0.0]]}, "logprobs", 2),
        ({"top_logprobs_values": [[-1.5], [-2.0], [-0.0]], "logprobs": [-1.0, -2.5, -3.0]}, "logprobs", 0),
        ({"top_logprobs_values": [[-1.0], [-2.0]]}, "logprobs", 2),
        ({"top_logprobs_values": None}, "logprobs", 0),
        ({"token_ids": [5, 6, 8], "logprobs": [0.0, 0.0, 0.0]}, "logprobs", -1),
    ],
)
def test_each_respect(change: dict[str, Any], field: str, expected: Any) -> None:
    found = getattr(compare(rows(), rows(**change)), field)
    assert found.tolist() == [expected]
    mirrored = {"failed_b": "failed_a"}.get(field, field)
    assert getattr(compare(rows(**change), rows()), mirrored).tolist() == [expected]


def test_equal_rows_differ_in_nothing() -> None:
    found = compare(rows(), rows())
    assert [found.prompt[0], found.tokens[0], found.logprobs[0]] == [-1, -1, -1]
    masks = [found.seed, found.params, found.failed_a, found.failed_b, found.error]
    assert not any(mask[0] for mask in masks)


def test_runs_without_logprobs() -> None:
    bare = rows().drop_columns(["logprobs", "top_logprobs_ids", "top_logprobs_values"])
    assert compare(bare, bare).logprobs.tolist() == [-1]


def test_columns_of_any_type_by_their_canonical_bytes() -> None:
    a = pa.table({"x": [0.0, 1.0], "y": [{"z": [1]}, None], "only": [1, 1], "s": ["a", "a"]})
    b = pa.table({"s": pa.array(["a", "b"], pa.large_string()), "y": [{"z": [1]}, {"z": [2]}], "x": [-0.0, 1.0]})
    found = {name: mask.tolist() for name, mask in differing_columns(a, b)}
    assert found == {"x": [True, False], "y": [False, True], "s": [False, True]}
