"""Two outputs of one op, element by element."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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


def compare_elements(a: dict[str, Array], b: dict[str, Array]) -> list[Elements]:
    """One for each output of the op that differs."""
    found = []
    for name in a:
        left, right = (np.atleast_1d(side[name]) for side in (a, b))
        bits = [side.view(np.dtype(f"u{side.itemsize}")) for side in (left, right)]
        places = np.argwhere(bits[0] != bits[1])
        if len(places):
            at = tuple(map(int, places[0]))
            hexes = [f"0x{int(side[at]):0{2 * side.itemsize}x}" for side in bits]
            found.append(
                Elements(name, len(places), left.size, at, _float(left[at]), _float(right[at]), hexes[0], hexes[1])
            )
    return found


def _float(value: np.generic) -> float:
    if value.dtype == np.uint16:  # the upper half of a float32
        return float((np.array([value]).astype(np.uint32) << 16).view(np.float32)[0])
    return value.item()  # type: ignore[no-any-return]
