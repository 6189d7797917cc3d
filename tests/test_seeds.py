"""Seeds: pinned values, identity alone, no collisions between neighbours."""

import struct

import pytest

from batchgen.seeds import lot, sample_seed, sample_seeds

PINNED = (6064048742707328577, 5067369695216769794, 8200494604414874629)


def test_pinned_values() -> None:
    """A change here changes every sampled row of every job."""
    assert sample_seed(7, "q1", 0) == PINNED[0]
    assert sample_seed(2**64 - 1, "schlüssel", 3) == PINNED[1]
    assert sample_seed(0, "", 0) == PINNED[2]


def test_neighbours_never_share_a_seed() -> None:
    """`seed + index` gives row r's second sample the seed of row r+1's first; here all 100,000 differ."""
    seeds = {sample_seed(job, str(row), sample) for job in range(2) for row in range(6250) for sample in range(8)}
    assert len(seeds) == 100_000
    by_addition = {row + sample for row in range(6250) for sample in range(8)}
    assert len(by_addition) < 6250 * 8


def test_every_part_of_the_identity_counts() -> None:
    base = sample_seed(7, "ab", 1)
    assert base == sample_seed(7, "ab", 1)
    assert len({base, sample_seed(8, "ab", 1), sample_seed(7, "ac", 1), sample_seed(7, "ab", 2)}) == 4


def test_parts_do_not_run_into_each_other() -> None:
    assert sample_seed(0, "a\x01\x00\x00\x00", 0) != sample_seed(0, "a", 1)
    assert sample_seed(0, "1", 0) != sample_seed(0, "10", 0)


def test_seeds_use_all_64_bits() -> None:
    seeds = [sample_seed(0, str(row), 0) for row in range(1000)]
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert 400 < sum(seed >= 2**63 for seed in seeds) < 600


@pytest.mark.parametrize(("job_seed", "sample_index"), [(2**64, 0), (-1, 0), (0, 2**32), (0, -1)])
def test_out_of_range_is_an_error(job_seed: int, sample_index: int) -> None:
    with pytest.raises(struct.error):
        sample_seed(job_seed, "k", sample_index)


def test_lots_are_pinned_and_even() -> None:
    """A change here changes which samples of a job are probed, and no row."""
    assert lot(PINNED[0], "probe") == 0.5387926253156151
    lots = [lot(sample_seed(0, str(row), 0), "probe") for row in range(10_000)]
    assert all(0 <= one < 1 for one in lots)
    for tenth in range(10):
        assert 900 < sum(tenth <= 10 * one < tenth + 1 for one in lots) < 1100


def test_lots_for_two_purposes_have_nothing_in_common() -> None:
    seeds = [sample_seed(0, str(row), 0) for row in range(10_000)]
    both = sum(lot(seed, "probe") < 0.1 and lot(seed, "replay") < 0.1 for seed in seeds)
    assert 60 < both < 140


@pytest.mark.parametrize("job_seed", [0, 7, 2**64 - 1])
def test_many_seeds_are_those_of_each(job_seed: int) -> None:
    samples = [(key, index) for key in ("", "a", "é\u2028😀", "k" * 300, "a") for index in (0, 1, 2**32 - 1)]
    expected = [sample_seed(job_seed, key, index) for key, index in samples]
    assert sample_seeds(job_seed, *map(list, zip(*samples, strict=True))) == expected
    assert sample_seeds(job_seed, [], []) == []


def test_many_seeds_need_an_index_for_each_key() -> None:
    with pytest.raises(ValueError, match="shorter"):
        sample_seeds(0, ["a", "b"], [0])
