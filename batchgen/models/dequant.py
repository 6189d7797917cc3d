"""Blocks of quantised numbers -> float32, by the definition of each GGML format. numpy only.

A block's values are computed in float32, one rounding an operation, in the order of the formula in each docstring:
the bits are the format's, not those of a library version. `d`, `m` are the block's float16 scale and offset.
"""

from collections.abc import Callable

import numpy as np

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def dequantize(blocks: Bytes, format_name: str) -> Floats:
    """uint8 [num_blocks, bytes of a block] -> float32 [num_blocks, values of a block], in a new array."""
    return _FORMATS[format_name](np.ascontiguousarray(blocks))


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    """d * q: d, 32 int8."""
    values: Floats = _half(blocks, 0) * blocks[:, 2:].view(np.int8)
    return values


def _q4_0(blocks: Bytes) -> Floats:
    """d * (q - 8): d, 32 nibbles."""
    q = _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
    values: Floats = _half(blocks, 0) * q
    return values


def _q4_1(blocks: Bytes) -> Floats:
    """d * q + m: d, m, 32 nibbles."""
    values = _half(blocks, 0) * _nibbles(blocks[:, 4:])
    values += _half(blocks, 2)
    return values


def _q4_k(blocks: Bytes) -> Floats:
    """(d * scale) * q - (m * offset): d, m, 12 bytes of 6-bit scales and offsets of 8 runs, 8 runs of 32 nibbles."""
    low, mid, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    offsets = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], axis=1)
    runs = _nibbles(blocks[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32)
    values: Floats = (_half(blocks, 0) * scales)[:, :, None] * runs
    values -= (_half(blocks, 2) * offsets)[:, :, None]
    return values.reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    """(d * scale) * (q - 32): 128 bytes of low nibbles, 64 of high bit pairs, int8 scales of 16 runs, d."""
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    q = (low | (pairs & 3) << 4).view(np.int8) - np.int8(32)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    values: Floats = scales[:, :, None] * q.reshape(-1, 16, 16)
    return values.reshape(-1, 256)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """uint8 [n, m] -> uint8 [n, 2m]: the low nibbles of a row, then its high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


_FORMATS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
