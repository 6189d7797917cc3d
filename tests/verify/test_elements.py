"""Where two outputs differ, to the bit."""

from typing import Any

import numpy as np
import torch

from batchgen.verify.elements import Elements, compare_elements


def test_elements_that_differ() -> None:
    bits = np.array([[0x3F80, 0x4000], [0xC040, 0]], np.uint16)  # 1, 2, -3, 0
    bf16, other = (
        torch.from_numpy(found).view(torch.bfloat16) for found in (bits, bits ^ np.array([[0, 0], [1, 2]], np.uint16))
    )
    nan, other_nan = (np.array([value], np.uint32).view(np.float32)[0] for value in (0x7FC00000, 0xFFC00001))
    a: dict[str, Any] = {
        "q": bf16,
        "same": np.zeros(3, np.float32),
        "token": np.array(3),
        "x": np.array([0.0, nan], np.float32),
    }
    b: dict[str, Any] = {
        "q": other,
        "same": np.zeros(3, np.float32),
        "token": np.array(4),
        "x": np.array([-0.0, other_nan], np.float32),
    }
    assert compare_elements(a, b) == [
        Elements("q", 2, 4, (1, 0), -3.0, -3.015625, "0xc040", "0xc041"),
        Elements("token", 1, 1, (0,), 3, 4, f"0x{3:016x}", f"0x{4:016x}"),
        Elements("x", 1, 2, (0,), 0.0, -0.0, "0x00000000", "0x80000000"),
    ]
