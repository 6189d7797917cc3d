"""What every op asks of its tensors."""

import torch

from batchgen.errors import EngineError

_ROOM = 64  # rows


def room(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """A new bf16 [rows, width] on the device of `like` with memory for 64 rows behind it.

    So the next linear may multiply up to 64 rows, of which nobody reads the last, without a copy (`padded`).
    """
    return torch.empty(max(rows, _ROOM), width, dtype=torch.bfloat16, device=like.device)[:rows]


def padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x [M, K] as [rows, K]; what the rows past M hold is anybody's."""
    M, K = x.shape
    if rows <= M:
        return x
    if x.untyped_storage().nbytes() >= (x.storage_offset() + rows * K) * x.element_size():
        return x.as_strided((rows, K), (K, 1))
    return torch.nn.functional.pad(x, (0, 0, 0, rows - M))


def check(name: str, tensor: torch.Tensor, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """The tensor, if it has that dtype and shape and is contiguous.  Raises EngineError."""
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else ", not contiguous"
        raise EngineError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}{layout}; the kernel takes {dtype} {list(shape)}"
        )
    return tensor
