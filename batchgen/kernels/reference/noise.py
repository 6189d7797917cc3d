"""The random number of one draw: a function of (seed, position, lane, vocabulary id) and of nothing else."""

import numpy as np
from numpy.typing import NDArray

from batchgen.kernels.reference.elementary import fma, log, log_of_split, split

DRAW_LANE = 0  # what the number is for; a lane's number is part of the profile

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011).  counter uint32 [N, 4], key two words -> uint32 [N, 4]."""
    x = [counter[:, i].astype(np.uint64) for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        product = x[0] * np.uint64(_MULTIPLIERS[0]), x[2] * np.uint64(_MULTIPLIERS[1])
        high = [p >> np.uint64(32) for p in product]
        low = [p & np.uint64(_LOW32) for p in product]
        x = [high[1] ^ x[1] ^ np.uint64(k0), low[1], high[0] ^ x[3] ^ np.uint64(k1), low[0]]
        k0, k1 = (k0 + _WEYL[0]) & _LOW32, (k1 + _WEYL[1]) & _LOW32
    return np.stack(x, axis=1).astype(np.uint32)


def words(seed: int, position: int, lane: int, count: int) -> NDArray[np.uint32]:
    """The random words of ids 0 .. count - 1: id i takes word i % 4 of the counter (i / 4, position, lane)."""
    counter = np.empty((-(-count // 4), 4), np.uint32)
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1:] = position & _LOW32, lane, position >> 32
    return philox(counter, (seed & _LOW32, seed >> 32)).reshape(-1)[:count]


def unit(x: NDArray[np.uint32]) -> NDArray[np.float32]:
    """(x + 1/2) 2^-32, rounded once."""
    low = fma((x & np.uint32(0xFFFF)).astype(np.float32), 2.0**-32, 2.0**-33)
    return fma((x >> np.uint32(16)).astype(np.float32), 2.0**-16, low)


def exponential(x: NDArray[np.uint32]) -> NDArray[np.float32]:
    """E = -log(1 - v), v = (x + 1/2) 2^-32: a standard exponential variate in [2^-33, 22.9).

    Below v = 0.289, log(1 - v) comes from the logarithm's polynomial at -v, and 1 - v is never rounded; above,
    1 - v is made of the complement of x. So E has all its bits at both ends.
    """
    is_low = x < np.uint32(0x4A000000)
    u = unit(np.where(is_low, x, ~x))
    k, f = split(u)
    return -log_of_split(np.where(is_low, np.float32(0), k), np.where(is_low, -u, f))


def gumbel(seed: int, position: int, lane: int, count: int) -> NDArray[np.float32]:
    """-log(E) for ids 0 .. count - 1: the noise whose argmax with the logits is a draw from their softmax."""
    return np.float32(0) - log(exponential(words(seed, position, lane, count)))
