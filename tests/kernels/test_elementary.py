"""exp, log and the exact fma: compiled twins against each other bit by bit, and against float64 for accuracy."""

import ctypes
import ctypes.util

import numpy as np
import pytest
from numpy.typing import NDArray
from support.bitwise import assert_bitwise

from batchgen import _cpu
from batchgen.kernels.reference import elementary

Array = NDArray[np.float32]
FUNCTIONS = {"exp": 0, "log": 1}
# fmt: off
SPECIALS = np.array([
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38,
    88.0, 88.00001, 89.0, -87.3, -103.9, -103.97, -104.0, -104.1, 0.70710677, 0.7071068, 1.4142135, 1.4142137,
], np.float32)
# fmt: on


def samples(seed: int, count: int = 200_000) -> Array:
    """Random bit patterns (every exponent, subnormals, NaNs), values around 1, and the specials."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = np.concatenate([rng.uniform(0.5, 2.0, count), rng.uniform(-105, 89, count)]).astype(np.float32)
    return np.concatenate([SPECIALS, patterns, near])


def compiled(name: str, x: Array) -> Array:
    y = np.empty_like(x)
    _cpu.elementary(FUNCTIONS[name], x.ctypes.data, y.ctypes.data, x.size)
    return y


def ulps(actual: Array, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance in units of the last place of the float32 nearest to `exact`."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    result: NDArray[np.float64] = np.abs(actual.astype(np.float64) - exact) / unit
    return result


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("instruction_set", _cpu.instruction_sets())
def test_every_instruction_set_equals_the_twin(name: str, instruction_set: str) -> None:
    x = samples(1)
    before = _cpu.in_use()
    _cpu.use(instruction_set)
    try:
        actual = compiled(name, x)
    finally:
        _cpu.use(before)
    expected = getattr(elementary, name)(x)
    is_nan = np.isnan(expected)
    assert_bitwise(np.isnan(actual), is_nan)
    assert_bitwise(actual[~is_nan], expected[~is_nan], f"{name} on {instruction_set}")


def test_a_changed_coefficient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = samples(2, 2000)
    x = x[~np.isnan(x)]
    nudged = [*elementary._LOG[:-2], float(np.nextafter(np.float32(elementary._LOG[-2]), np.float32(1)))]
    monkeypatch.setattr(elementary, "_LOG", [*nudged, elementary._LOG[-1]])
    with pytest.raises(AssertionError, match="differ"):
        assert_bitwise(compiled("log", np.abs(x)), elementary.log(np.abs(x)))


def test_exp_is_accurate() -> None:
    x = np.linspace(-87.0, 88.0, 400_001).astype(np.float32)
    assert ulps(compiled("exp", x), np.exp(x.astype(np.float64))).max() < 1.0
    tiny = np.linspace(-103.2, -87.0, 20_001).astype(np.float32)  # subnormal results: the unit is 2^-149
    assert ulps(compiled("exp", tiny), np.exp(tiny.astype(np.float64))).max() <= 1.0


def test_log_is_accurate() -> None:
    near_one = (1.0 + np.linspace(-0.4, 0.6, 400_001)).astype(np.float32)
    every_size = np.exp2(np.linspace(-149, 127.99, 400_001)).astype(np.float32)
    for x in (near_one[near_one != 1.0], every_size[every_size != 1.0]):
        assert ulps(compiled("log", x), np.log(x.astype(np.float64))).max() < 1.0


def test_specials() -> None:
    inf = np.float32(np.inf)
    x = np.array([0.0, -0.0, -np.inf, -200.0, np.inf, 200.0], np.float32)
    top = np.float32(np.exp(np.float64(88)))
    assert_bitwise(compiled("exp", x)[:4], np.array([1, 1, 0, 0], np.float32))
    assert_bitwise(compiled("exp", x)[4:], compiled("exp", np.full(2, 88, np.float32)))
    assert abs(compiled("exp", x)[4] / top - 1) < 1e-6
    x = np.array([0.0, -0.0, 1.0, np.inf], np.float32)
    assert_bitwise(compiled("log", x), np.array([-inf, -inf, 0, inf], np.float32))
    assert np.isnan(compiled("log", np.array([-1.0, -1e-45, -np.inf, np.nan], np.float32))).all()
    assert np.isnan(compiled("exp", np.array([np.nan], np.float32))).all()


def test_fma_rounds_once() -> None:
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    libm.fmaf.argtypes, libm.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
    rng = np.random.default_rng(3)
    n = 20_000
    x, y, z = rng.integers(0, 2**32, (3, n), dtype=np.uint32).view(np.float32)
    x[n // 2 :], y[n // 2 :] = rng.standard_normal((2, n - n // 2)).astype(np.float32)
    # Ties of float32 that a third, tiny term must break: where rounding twice goes wrong.
    product = (x[n // 2 :].astype(np.float64) * y[n // 2 :]).astype(np.float32)
    z[n // 2 :] = product * np.exp2(rng.integers(-60, 60, n - n // 2)).astype(np.float32)
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    x, y, z = x[finite], y[finite], z[finite]
    expected = np.array([libm.fmaf(*v) for v in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)], np.float32)
    actual = elementary.fma(x, y, z)
    keep = ~np.isnan(expected)
    assert_bitwise(actual[keep], expected[keep])


def test_fma_where_two_roundings_fail() -> None:
    # 1 + 2^-24 is a tie of float32, and 2^-80 decides it: lost when the sum is first rounded to float64.
    x, y, z = np.float32(2**-40), np.float32(2**-40), np.float32(1)
    one_and_half_ulp = np.float32(1) + np.float32(2**-23)
    a = np.float32(1 + 2**-12)  # a * a = 1 + 2^-11 + 2^-24: a tie
    tie = elementary.fma(a, a, np.float32(0))
    above = elementary.fma(a, a, np.float32(2**-90))
    assert np.float32(np.float64(a) * np.float64(a) + 2.0**-90) == tie  # rounding twice
    assert above == np.nextafter(tie, np.float32(2))
    assert elementary.fma(x, y, z) == 1
    assert elementary.fma(np.float32(1), one_and_half_ulp, np.float32(-1)) == np.float32(2**-23)


def test_fma_broadcasts_and_keeps_scalars() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_bitwise(elementary.fma(x, 2.0, np.float32(1)), x * 2 + 1)
    assert elementary.fma(2.0, 3.0, 4.0).shape == ()
    assert np.isnan(elementary.fma(np.inf, 0.0, 1.0))
    assert elementary.fma(np.inf, 1.0, 1.0) == np.inf
