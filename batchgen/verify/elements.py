"""Two outputs of one op, element by element."""

from dataclasses import dataclass

import numpy as np

from batchgen.engine.bits import as_bits
from batchgen.kernels import Outputs


@dataclass(frozen=True, slots=True)
class Elements:
    """How two outputs of one op differ: the first differing element, and in how many they do."""

    output: str  # "out", "q", "k", "token", …
    differing: int
    of: int
    index: tuple[int, ...]  # in the row of one token
    a: float
    b: float
    a_bits: str  # hex
    b_bits: str


def compare_elements(a: Outputs, b: Outputs) -> list[Elements]:
    """One for each output of the op that differs."""
    found = []
    for name in a:
        left, right = (np.atleast_1d(as_bits(side[name])) for side in (a, b))
        places = np.argwhere(left != right)
        if len(places):
            at = tuple(map(int, places[0]))
            value_a, value_b = (side[name].reshape(left.shape)[at].item() for side in (a, b))
            bits_a, bits_b = (f"0x{int(bits[at]):0{2 * bits.itemsize}x}" for bits in (left, right))
            found.append(Elements(name, len(places), left.size, at, value_a, value_b, bits_a, bits_b))
    return found
