"""Row keys at scale: 16 bytes of hash in place of each string, and which rows repeat an earlier key."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from batchgen.io.columns import Undecodable
from batchgen.io.rendering import Unrendered

_RANGE = 1 << 18  # halves of hashes that are looked at together


class Repeats(NamedTuple):
    """Rows whose key an earlier row has: `rows` ascending, and for each its `ordinals`: 2 for the second, and so on."""

    rows: NDArray[np.int64]  # [repeats]
    ordinals: NDArray[np.int64]  # [repeats]

    def suffix(self, first: int, keys: list[str]) -> list[str]:
        """The keys of the rows from `first` on, with #ordinal on those that repeat an earlier one."""
        low, high = np.searchsorted(self.rows, [first, first + len(keys)])
        if low < high:
            keys = list(keys)
            for row, ordinal in zip(self.rows[low:high], self.ordinals[low:high], strict=True):
                keys[row - first] += f"#{ordinal}"
        return keys


NO_REPEATS = Repeats(np.empty(0, np.int64), np.empty(0, np.int64))


def content_key(content: dict[str, Any]) -> str:
    """A key for a row's prompt: 128 bits in hex, of its JSON with sorted names and everything but ASCII escaped."""
    plain = {
        role: value.value if isinstance(value, Undecodable | Unrendered) else value for role, value in content.items()
    }
    return xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def hash_keys(keys: Iterable[list[str]], count: int) -> NDArray[np.uint64]:
    """xxh3_128 of each of `count` keys, that come in blocks -> [count, 2]"""
    hashes = np.empty((count, 2), np.uint64)
    done = 0
    for block in keys:
        digests = b"".join([xxhash.xxh3_128_digest(key.encode()) for key in block])
        hashes[done : done + len(block)] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        done += len(block)
    assert done == count
    return hashes


def find_repeats(hashes: NDArray[np.uint64]) -> Repeats:
    """The rows of `hashes` [n, 2] that equal an earlier row. Sorts 8 bytes a row; more only of a part of the suspects.

    Suspects are looked at by ranges of their hash, so that a job in which every key is a repeat needs little more
    memory than one without any.
    """
    ordered = np.sort(hashes[:, 0])
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    if not len(twice):
        return NO_REPEATS
    found = [_repeats_among(hashes, twice[at : at + _RANGE]) for at in range(0, len(twice), _RANGE)]
    rows, ordinals = (np.concatenate(parts) for parts in zip(*found, strict=True))
    del found
    order = np.argsort(rows)
    return Repeats(rows[order], ordinals[order])


def _repeats_among(hashes: NDArray[np.uint64], twice: NDArray[np.uint64]) -> Repeats:
    """Of the rows whose first half is one of `twice`, which ascend and are all halves of their range; in any order."""
    inside = (hashes[:, 0] >= twice[0]) & (hashes[:, 0] <= twice[-1])
    rows = np.flatnonzero(inside)
    rows = rows[twice[np.searchsorted(twice, hashes[rows, 0])] == hashes[rows, 0]]
    by_key = rows[np.lexsort((hashes[rows, 1], hashes[rows, 0]))]  # stable: equal keys stay in row order
    is_new = np.ones(len(by_key), np.bool_)
    is_new[1:] = (hashes[by_key[1:]] != hashes[by_key[:-1]]).any(axis=1)
    index = np.arange(len(by_key))
    ordinals = index - np.maximum.accumulate(np.where(is_new, index, 0)) + 1
    return Repeats(by_key[~is_new], ordinals[~is_new])
