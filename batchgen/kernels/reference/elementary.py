"""exp and log of the profile portable/1, and the exact fused multiply-add that they are made of, in numpy.

The same coefficients in the same order as csrc/elementary.h, one float32 operation at a time; slow.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float32]

_LOG2_E = float.fromhex("0x1.715476p+0")
_LN2_HIGH = float.fromhex("0x1.62e4p-1")  # few enough bits that n times it is exact
_LN2_LOW = float.fromhex("0x1.7f7d1cp-20")
_EXP = [
    float.fromhex(c)
    for c in ("0x1.a01a02p-13", "0x1.6c16c2p-10", "0x1.111112p-7", "0x1.555556p-5", "0x1.555556p-3", "0x1p-1", "1", "1")
]
_LOG = [
    float.fromhex(c)
    for c in (
        "-0x1.41ed4ep-4",
        "0x1.07d0ccp-3",
        "-0x1.0ce08ep-3",
        "0x1.226e5p-3",
        "-0x1.54788ap-3",
        "0x1.99a596p-3",
        "-0x1.00022p-2",
        "0x1.55554ap-2",
        "-0x1p-1",
    )
]
_SQRT_HALF = np.uint32(0x3F3504F3)  # the bits of sqrt(1/2), rounded down
_ONE = np.uint32(0x3F800000)


def fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """x * y + z of float32 values, rounded once (IEEE-754 fusedMultiplyAdd), elementwise.

    The product is exact in float64. The sum is taken there rounded to odd, and float64 has more than two bits
    over float32, so that the second rounding is the one that counts.
    """
    with np.errstate(all="ignore"):
        a = np.asarray(x, np.float32).astype(np.float64) * np.asarray(y, np.float32)
        b = np.asarray(z, np.float32).astype(np.float64)
        total = np.atleast_1d(a + b)
        from_b = total - a
        error = (a - (total - from_b)) + (b - from_b)
        is_even = (total.view(np.int64) & 1) == 0
        inexact = np.isfinite(total) & (error != 0) & is_even
        outward = (error > 0) == (total > 0)
        total.view(np.int64)[...] += np.where(inexact, np.where(outward, 1, -1), 0)
        return total.astype(np.float32).reshape(np.broadcast_shapes(a.shape, b.shape))


def _horner(coefficients: list[float], x: Array) -> Array:
    p = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = fma(p, x, c)
    return p


def _two_to_the(n: Array) -> Array:
    return ((n.astype(np.int32) + 127) << 23).view(np.float32)


def exp(argument: ArrayLike) -> Array:
    """e^x of float32 values; 0 below -104, e^88 above 88; NaN stays NaN."""
    given = np.asarray(argument, np.float32)
    x = np.clip(np.where(np.isnan(given), np.float32(-104), given), np.float32(-104), np.float32(88))
    n = np.rint(x * np.float32(_LOG2_E))
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    half = np.rint(n * np.float32(0.5))
    with np.errstate(under="ignore"):
        y = _horner(_EXP, r) * _two_to_the(half) * _two_to_the(n - half)
    return np.where(np.isnan(given), given, y)


def split(x: Array) -> tuple[Array, Array]:
    """k, f with x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); x normal and positive."""
    shifted = x.view(np.uint32) + (_ONE - _SQRT_HALF)
    k = (shifted >> np.uint32(23)).astype(np.float32) - np.float32(127)
    return k, ((shifted & np.uint32(0x007FFFFF)) + _SQRT_HALF).view(np.float32) - np.float32(1)


def log_of_split(k: Array, f: Array) -> Array:
    """k ln 2 + log(1 + f), by log(1 + f) = f + f^2 q(f)."""
    tail = fma(k, _LN2_LOW, f * f * _horner(_LOG, f))
    return fma(k, _LN2_HIGH, f + tail)


def log(argument: ArrayLike) -> Array:
    """Natural logarithm of float32 values; -infinity of +-0, NaN of what is negative; infinity and NaN stay."""
    x = np.asarray(argument, np.float32)
    is_plain = (x > 0) & np.isfinite(x)
    is_small = is_plain & (x < np.float32(2**-126))
    scale = np.where(is_small, np.float32(2**23), np.float32(1))
    k, f = split(np.where(is_plain, x, np.float32(1)) * scale)
    y = log_of_split(np.where(is_small, k - np.float32(23), k), f)
    y = np.where(x == 0, np.float32(-np.inf), np.where(x < 0, np.float32(np.nan), y))
    return np.where(np.isnan(x) | (x == np.inf), x, y)
