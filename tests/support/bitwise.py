"""Equality of bits, the only equality that a determinism test may use."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def assert_bitwise(actual: Any, expected: Any, what: str = "") -> None:
    """Fail unless dtype, shape and raw bytes are the same; show the first differing index and both values there.

    Takes numpy arrays and torch tensors (any device, any strides), one of each too. -0.0 is not 0.0 here, and a NaN
    equals a NaN of the same bits. `what` names the thing in the message.
    """
    name = f"{what}: " if what else ""
    a_dtype, a_shape, a = _raw(actual)
    b_dtype, b_shape, b = _raw(expected)
    assert a_dtype == b_dtype, f"{name}dtype {a_dtype} is not {b_dtype}"
    assert a_shape == b_shape, f"{name}shape {a_shape} is not {b_shape}"
    if np.array_equal(a, b):
        return
    differs = np.flatnonzero((a != b).any(axis=1))
    at = tuple(int(i) for i in np.unravel_index(differs[0], a_shape))
    raise AssertionError(
        f"{name}{differs.size} of {len(a)} elements differ, first at {list(at)}: "
        f"{actual[at].item()!r} (0x{a[differs[0]][::-1].tobytes().hex()}) is not "
        f"{expected[at].item()!r} (0x{b[differs[0]][::-1].tobytes().hex()})"
    )


def _raw(x: Any) -> tuple[str, tuple[int, ...], NDArray[np.uint8]]:
    """The dtype's name, the shape, and the bytes of each element, in little-endian order."""
    if isinstance(x, np.ndarray | np.generic):
        array = np.ascontiguousarray(x)
        return x.dtype.name, x.shape, array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    import torch

    assert isinstance(x, torch.Tensor), f"a numpy array or a torch tensor, not {type(x).__name__}"
    flat = x.detach().cpu().contiguous().reshape(-1)
    raw: NDArray[np.uint8] = flat.view(torch.uint8).numpy().reshape(-1, x.element_size())
    return str(x.dtype).removeprefix("torch."), tuple(x.shape), raw
