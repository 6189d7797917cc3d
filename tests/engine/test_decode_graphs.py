"""Which graph a step takes: few enough that all can be captured, and never one that is too small."""

import pytest

from batchgen.engine.decode_graphs import bucket, context_bucket


def test_buckets_hold_their_rows_and_are_few() -> None:
    assert all(bucket(rows) >= rows for rows in range(1, 1025))
    assert [bucket(rows) for rows in (1, 2, 3, 5, 9, 16, 17, 33, 250, 256)] == [1, 2, 4, 8, 16, 16, 32, 48, 256, 256]
    assert len({bucket(rows) for rows in range(1, 257)}) == 20


@pytest.mark.parametrize("max_model_len", [1, 32, 33, 1000, 4096, 40_000])
def test_contexts_hold_their_positions(max_model_len: int) -> None:
    found = {context_bucket(n, max_model_len) for n in range(1, max_model_len + 1)}
    assert all(context_bucket(n, max_model_len) >= n for n in range(1, max_model_len + 1))
    assert len(found) <= 8
    assert all(context % 32 == 0 for context in found)
    assert max(found) < max_model_len + 32
