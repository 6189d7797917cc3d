"""The packed form of a weight: every element at its place, padding zero, and back."""

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen.kernels.packing import pack, unpack


@pytest.mark.parametrize(("n", "k"), [(1, 2), (32, 4), (33, 64), (64, 6), (95, 10)])
def test_the_layout_of_a_linear_weight(n: int, k: int) -> None:
    weight = torch.arange(n * k, dtype=torch.int16).view(torch.bfloat16).view(n, k)
    packed = pack(weight).data
    assert packed.shape == (-(-n // 32), k // 2, 32, 2)
    assert packed.is_contiguous()
    bits, stored = weight.view(torch.int16), packed.view(torch.int16)
    for row in range(packed.shape[0] * 32):
        for column in range(k):
            expected = bits[row, column] if row < n else 0
            assert stored[row // 32, column // 2, row % 32, column % 2] == expected
    assert_bitwise(unpack(pack(weight)), weight)
