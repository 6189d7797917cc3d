import gguf
import numpy as np
import pytest
from support.bitwise import assert_bitwise

from batchgen.models.dequant import dequantize
from batchgen.models.gguf_file import GGML_TYPES

TYPES = {kind.name: (code, kind) for code, kind in GGML_TYPES.items()}


@pytest.mark.parametrize("name", TYPES)
def test_random_blocks_are_the_bits_of_the_gguf_package(name: str) -> None:
    """All byte patterns: scales that are subnormal, infinite or NaN among them."""
    code, kind = TYPES[name]
    blocks = np.random.default_rng(code).integers(0, 256, (2048, kind.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantize(blocks, name)
        theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(code)).reshape(-1, kind.block)
    assert_bitwise(ours, theirs, name)


@pytest.mark.parametrize("name", TYPES)
def test_blocks_do_not_see_each_other(name: str) -> None:
    code, kind = TYPES[name]
    blocks = np.random.default_rng(code).integers(0, 256, (7, kind.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        together = dequantize(blocks, name)
        for i in range(len(blocks)):
            assert_bitwise(dequantize(blocks[i : i + 1], name), together[i : i + 1], name)


def block(*parts: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.concatenate([part.view(np.uint8).ravel() for part in parts])[None]


def test_q4_1_by_hand() -> None:
    packed = np.full(16, 0x5A, np.uint8)  # low nibbles 10, high nibbles 5
    values = dequantize(block(np.array([0.5, -2.0], np.float16), packed), "Q4_1")
    assert values.tolist() == [[3.0] * 16 + [0.5] * 16]


def test_q8_0_by_hand() -> None:
    values = dequantize(block(np.array([0.25], np.float16), np.arange(-16, 16, dtype=np.int8)), "Q8_0")
    assert values.tolist() == [[i / 4 for i in range(-16, 16)]]


def test_q6_k_by_hand() -> None:
    """q = 32 + 1 everywhere but in the second run of 32, whose high bits are 0: there q = 1."""
    low = np.full(128, 0x11, np.uint8)
    high = np.full(64, 0b10100010, np.uint8)
    scales = np.arange(16, dtype=np.int8)
    values = dequantize(block(low, high, scales, np.array([2.0], np.float16)), "Q6_K")[0]
    runs = values.reshape(8, 32)
    for run in range(8):
        q = -31 if run % 4 == 1 else 1
        assert set(runs[run, :16].tolist()) == {2.0 * (2 * run) * q}
        assert set(runs[run, 16:].tolist()) == {2.0 * (2 * run + 1) * q}


def test_the_result_can_be_written_and_shares_nothing() -> None:
    stored = np.arange(8, dtype=np.uint8).reshape(2, 4)
    values = dequantize(stored, "F32")
    values[:] = 7
    assert stored.ravel().tolist() == list(range(8))
