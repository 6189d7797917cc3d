"""Job seed + row key + sample index -> the seed of one sample, and lots. Nothing else makes randomness."""

import struct
from collections.abc import Sequence

import xxhash

_DOMAIN = b"batchgen.sample_seed.v1\0"
_LOT = b"batchgen.lot.v1\0"
_SEED_AND_SIZE, _INDEX, _SEED = (struct.Struct(form).pack for form in ("<QQ", "<I", "<Q"))


def sample_seed(job_seed: int, row_key: str, sample_index: int) -> int:
    """The seed (uint64) of one sample: a hash of its identity.

    A function of these three alone, so a row keeps its seeds when rows come or go, and raising `n` keeps
    the samples that are there. A hash and not ``job_seed + i``, which would hand row r's second sample
    the seed of row r+1's first.

    `job_seed` is in [0, 2^64), `sample_index` in [0, 2^32); outside, struct.error.
    """
    key = row_key.encode()
    return xxhash.xxh3_64_intdigest(_DOMAIN + _SEED_AND_SIZE(job_seed, len(key)) + key + _INDEX(sample_index))


def sample_seeds(job_seed: int, row_keys: Sequence[str], sample_indices: Sequence[int]) -> list[int]:
    """`sample_seed` of each (row key, sample index), many times as fast."""
    head, digest = _DOMAIN + struct.pack("<Q", job_seed), xxhash.xxh3_64_intdigest
    sizes, tails = _Packed("<Q"), _Packed("<I")
    keys = [key.encode() for key in row_keys]
    return [
        digest(head + sizes[len(key)] + key + tails[index]) for key, index in zip(keys, sample_indices, strict=True)
    ]


class _Packed(dict[int, bytes]):
    """The bytes of small numbers, made once each."""

    def __init__(self, form: str) -> None:
        self._pack = struct.Struct(form).pack

    def __missing__(self, number: int) -> bytes:
        packed = self[number] = self._pack(number)
        return packed


def lot(seed: int, purpose: str) -> float:
    """A number in [0, 1) that is a hash of a sample's seed and of what it is drawn for.

    The samples whose lot is below a share are about that share of all, the same ones wherever they are made.
    """
    drawn = xxhash.xxh3_64_intdigest(_LOT + purpose.encode() + _SEED(seed))
    return (drawn >> 11) / 2.0**53
