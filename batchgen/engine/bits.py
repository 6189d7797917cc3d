"""Equality of bits, and a count of how often it was asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.errors import EngineError


def as_bits(x: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """The elements as unsigned integers of the same size; all NaNs are one, for their bits are of no profile."""
    if isinstance(x, torch.Tensor):
        x = x.contiguous().cpu()
        x = x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
        is_bfloat16 = x.dtype == np.int16
    else:
        is_bfloat16 = False
    bits = np.ascontiguousarray(x).view(np.dtype(f"u{x.itemsize}"))
    nan = (bits & 0x7FFF) > 0x7F80 if is_bfloat16 else np.isnan(x) if x.dtype.kind == "f" else np.zeros(0, bool)
    return np.where(nan, bits.dtype.type(0x7FC0 << 8 * (x.itemsize - 2)), bits) if nan.any() else bits


def same_bits(a: torch.Tensor | NDArray[Any], b: torch.Tensor | NDArray[Any]) -> bool:
    """Of two arrays of one dtype; -0.0 is not 0.0."""
    return np.array_equal(as_bits(a), as_bits(b))


@dataclass(slots=True)
class Checks:
    """Comparisons that must all hold."""

    count: int = 0

    def same(
        self,
        found: Sequence[Any],
        expected: Sequence[Any],
        what: str,
        other: str,
        culprit: Callable[[], str] = lambda: "",
    ) -> None:
        """Raise EngineError "`what` gives other bits than `other`" unless all arrays are equal bit for bit.

        `culprit` is asked after a difference, and may take its time.
        """
        self.count += 1
        for a, b in zip(found, expected, strict=True):
            if not same_bits(a, b):
                raise EngineError(
                    f"self-test: {what} gives other bits than {other}{culprit()}",
                    hint="no row made here could be reproduced; the build or the processor is at fault",
                )
