"""Tables of the rotary embedding, the same bits on every machine."""

import numpy as np
import torch
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# pi / 2 in three parts: the first two have 33 significant bits each, so that their product with a quadrant number
# below 2^20 is exact in float64.
_HALF_PI = (float.fromhex("0x1.921fb544p+0"), float.fromhex("0x1.0b4611a6p-34"), float.fromhex("0x1.3198a2e037073p-69"))
_SIN = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800, -1 / 1307674368000)
_COS = (-1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600, -1 / 87178291200, 1 / 20922789888000)


def rotary_table(frequencies: tuple[float, ...], positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [positions, len(frequencies)], of position * frequency (radians a position).

    Float64 throughout and rounded once. Only IEEE + - * and rounding: a libm's sine differs between machines.
    """
    angle = np.arange(positions, dtype=np.float64)[:, None] * np.array(frequencies, dtype=np.float64)
    cos, sin = _cos_sin(angle)
    return torch.from_numpy(cos.astype(np.float32)), torch.from_numpy(sin.astype(np.float32))


def _cos_sin(angle: Float64) -> tuple[Float64, Float64]:
    quadrant = np.rint(angle * (2 / np.pi))
    r = angle
    for part in _HALF_PI:
        r = r - quadrant * part
    square = r * r
    sin = r + r * square * _horner(square, _SIN)
    cos = 1.0 + square * _horner(square, _COS)
    turn = quadrant.astype(np.int64) & 3
    return (
        np.choose(turn, [cos, -sin, -cos, sin]),
        np.choose(turn, [sin, cos, -sin, -cos]),
    )


def _horner(x: Float64, coefficients: tuple[float, ...]) -> Float64:
    total = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total
