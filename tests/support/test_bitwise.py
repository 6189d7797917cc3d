"""The assert that all the others lean on must itself be able to fail."""

import numpy as np
import pytest
import torch
from support.bitwise import assert_bitwise


def test_equal_bits_pass() -> None:
    x = np.array([[1.0, -0.0], [np.nan, np.inf]], np.float32)
    assert_bitwise(x, x.copy())
    assert_bitwise(torch.from_numpy(x), x)
    assert_bitwise(torch.from_numpy(x).T, np.ascontiguousarray(x.T))
    assert_bitwise(torch.ones((2, 3), dtype=torch.bfloat16), torch.ones((2, 3), dtype=torch.bfloat16))
    assert_bitwise(np.zeros((0, 4), np.int32), torch.zeros((0, 4), dtype=torch.int32))
    assert_bitwise(np.float32(2), torch.tensor(2.0))


def test_one_ulp_is_seen_and_named() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = x.copy()
    y[1, 2] = np.nextafter(y[1, 2], np.float32(np.inf))
    with pytest.raises(AssertionError, match=r"rows: 1 of 12 elements differ, first at \[1, 2\]: 6\.0 \(0x40c00000\)"):
        assert_bitwise(x, y, "rows")
    with pytest.raises(AssertionError, match="0x40c00001"):
        assert_bitwise(torch.from_numpy(x), torch.from_numpy(y))


def test_signs_of_zero_and_nan_bits_are_seen() -> None:
    with pytest.raises(AssertionError, match="differ"):
        assert_bitwise(np.zeros(1), -np.zeros(1))
    quiet = np.array([0x7FC00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00001], np.uint32).view(np.float32)
    with pytest.raises(AssertionError, match="0x7fc00001"):
        assert_bitwise(quiet, other)


def test_dtype_and_shape_are_seen() -> None:
    with pytest.raises(AssertionError, match="dtype float32 is not float64"):
        assert_bitwise(np.zeros(3, np.float32), np.zeros(3))
    with pytest.raises(AssertionError, match=r"shape \(3,\) is not \(3, 1\)"):
        assert_bitwise(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(AssertionError, match="not list"):
        assert_bitwise([1.0], [1.0])
