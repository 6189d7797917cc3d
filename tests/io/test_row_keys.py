"""Repeated keys among many: against a plain dictionary, and with every row a repeat."""

import random
import tracemalloc

import numpy as np
import pytest

from batchgen.io import row_keys
from batchgen.io.columns import Undecodable
from batchgen.io.row_keys import NO_REPEATS, content_key, find_repeats, hash_keys


def by_dictionary(keys: list[str]) -> dict[int, int]:
    seen: dict[str, int] = {}
    repeats = {}
    for row, key in enumerate(keys):
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            repeats[row] = seen[key]
    return repeats


@pytest.mark.parametrize(("count", "distinct"), [(0, 1), (1, 1), (50, 1), (500, 20), (2000, 1500), (2000, 10**9)])
def test_repeats_are_those_of_a_dictionary(count: int, distinct: int) -> None:
    rng = random.Random(count)
    keys = [str(rng.randrange(distinct)) for _ in range(count)]
    repeats = find_repeats(hash_keys([keys[:30], keys[30:]], count))
    assert dict(zip(repeats.rows.tolist(), repeats.ordinals.tolist(), strict=True)) == by_dictionary(keys)
    assert repeats.rows.tolist() == sorted(repeats.rows.tolist())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_repeats_do_not_hang_on_the_ranges(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_keys, "_RANGE", size)
    rng = random.Random(size)
    keys = [str(rng.randrange(60)) for _ in range(200)]
    repeats = find_repeats(hash_keys([keys], 200))
    assert dict(zip(repeats.rows.tolist(), repeats.ordinals.tolist(), strict=True)) == by_dictionary(keys)


@pytest.mark.parametrize("copies", [1, 2, 200_000])
def test_memory_is_little_however_many_are_repeats(copies: int) -> None:
    count = 2_000_000
    hashes = np.repeat(np.random.default_rng(0).integers(0, 2**63, (count // copies, 2), np.uint64), copies, axis=0)
    tracemalloc.start()
    repeats = find_repeats(hashes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(repeats.rows) == count - count // copies
    assert peak < 64 * count


def test_rows_that_share_half_a_hash_are_no_repeats() -> None:
    hashes = np.array([[7, 1], [7, 2], [8, 1], [7, 1]], np.uint64)
    repeats = find_repeats(hashes)
    assert (repeats.rows.tolist(), repeats.ordinals.tolist()) == ([3], [2])


def test_suffixes_land_on_their_rows_whatever_the_block() -> None:
    keys = ["a", "b", "a", "a", "b"]
    repeats = find_repeats(hash_keys([keys], 5))
    whole = repeats.suffix(0, keys)
    assert whole == ["a", "b", "a#2", "a#3", "b#2"]
    assert repeats.suffix(0, keys[:2]) + repeats.suffix(2, keys[2:4]) + repeats.suffix(4, keys[4:]) == whole
    assert keys == ["a", "b", "a", "a", "b"]
    assert NO_REPEATS.suffix(0, keys) is keys


def test_content_keys_are_pinned_and_see_every_part() -> None:
    assert content_key({"prompt": "hé"}) == "0e7832b707701c4b137afbdff70d0d17"
    contents: list[dict[str, object]] = [
        {"prompt": "a"},
        {"prompt": None},
        {"prompt": ""},
        {"prompt": Undecodable("a\udcff")},
        {"prompt": "a\\udcff"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": None},
        {"messages": [{"role": "user", "content": None}]},
        {"prompt_token_ids": [1, 23]},
        {"prompt_token_ids": [12, 3]},
    ]
    assert len({content_key(content) for content in contents}) == len(contents)


def test_content_keys_ignore_the_order_of_names() -> None:
    one = content_key({"messages": [{"role": "user", "content": "a"}]})
    assert one == content_key({"messages": [{"content": "a", "role": "user"}]})
