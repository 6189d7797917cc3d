"""The keyed noise: published Philox vectors, equal bits on every instruction set, the ends of (0, 1), independence."""

import numpy as np
import pytest
from numpy.typing import NDArray
from support.bitwise import assert_bitwise

from batchgen import _cpu
from batchgen.kernels.reference.noise import exponential, gumbel, philox, unit, words

FULL = 0xFFFFFFFF


def compiled(seed: int, position: int, lane: int, count: int) -> NDArray[np.float32]:
    out = np.empty(count, np.float32)
    _cpu.noise(seed, position, lane, out.ctypes.data, count)
    return out


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([FULL] * 4, (FULL, FULL), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter: list[int], key: tuple[int, int], expected: list[int]) -> None:
    assert philox(np.array([counter], np.uint32), key)[0].tolist() == expected


@pytest.mark.parametrize("instruction_set", _cpu.instruction_sets())
@pytest.mark.parametrize("count", [1, 3, 16, 63, 64, 65, 1000])
def test_every_instruction_set_equals_the_twin(instruction_set: str, count: int) -> None:
    before = _cpu.in_use()
    _cpu.use(instruction_set)
    try:
        for seed, position, lane in [(0, 0, 0), (2**64 - 1, 2**63 - 1, FULL), (2**63 + 5, 2**32, 7), (9, 2**32 - 1, 0)]:
            assert_bitwise(compiled(seed, position, lane, count), gumbel(seed, position, lane, count))
    finally:
        _cpu.use(before)


def test_the_ends_of_the_interval() -> None:
    x = np.array([0, 1, 2, 0x49FFFFFF, 0x4A000000, FULL - 1, FULL], np.uint32)
    v = (x.astype(np.float64) + 0.5) / 2**32
    exact = -np.log1p(-v)
    e = exponential(x)
    assert np.abs(e / exact - 1).max() < 2**-23
    assert (np.diff(e) >= 0).all()
    assert e[0] == 2**-33
    assert 22.8 < e[-1] < 22.9


def test_exponential_has_its_bits_everywhere() -> None:
    rng = np.random.default_rng(0)
    low = np.exp2(rng.uniform(0, 32, 100_000)).astype(np.uint32)
    x = np.unique(np.concatenate([low, ~low]))
    exact = -np.log1p(-(x.astype(np.float64) + 0.5) / 2**32)
    # v and 1 - v are rounded once (half a unit), which the logarithm can only shrink; and it errs by less than one.
    assert np.abs(exponential(x) / exact - 1).max() < 1.5 * 2**-23
    assert (exponential(x) > 0).all()


def test_unit_is_rounded_once() -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint32)
    assert_bitwise(unit(x), ((x.astype(np.float64) + 0.5) / 2**32).astype(np.float32))


def test_moments_are_those_of_a_gumbel() -> None:
    n = 200_000
    g = compiled(12345, 678, 0, n).astype(np.float64)
    assert abs(g.mean() - 0.5772156649) < 4 * np.pi / np.sqrt(6 * n)
    assert abs(g.var() / (np.pi**2 / 6) - 1) < 0.03
    u = np.sort(np.exp(-np.exp(-g)))
    assert np.abs(u - (np.arange(n) + 0.5) / n).max() < 1.63 / np.sqrt(n)  # Kolmogorov-Smirnov, 1%


@pytest.mark.parametrize("what", ["seed", "seed's high word", "position", "position's high word", "lane"])
def test_neighbours_are_independent(what: str) -> None:
    n = 65_536
    base = compiled(1000, 2000, 0, n)
    other = {
        "seed": lambda: compiled(1001, 2000, 0, n),
        "seed's high word": lambda: compiled(1000 + 2**32, 2000, 0, n),
        "position": lambda: compiled(1000, 2001, 0, n),
        "position's high word": lambda: compiled(1000, 2000 + 2**32, 0, n),
        "lane": lambda: compiled(1000, 2000, 1, n),
    }[what]()
    assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(n)
    assert (base != other).mean() > 0.999


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 16, 64])
def test_neighbouring_ids_are_independent(distance: int) -> None:
    g = compiled(42, 3, 0, 65_536)
    assert abs(np.corrcoef(g[:-distance], g[distance:])[0, 1]) < 4 / np.sqrt(len(g))


def test_a_longer_vocabulary_keeps_the_noise_of_the_shorter() -> None:
    assert_bitwise(compiled(5, 6, 0, 50), compiled(5, 6, 0, 5000)[:50])
    assert len(np.unique(words(5, 6, 0, 5000))) > 4990
