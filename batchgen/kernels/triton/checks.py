"""What every op asks of its tensors."""

import torch

from batchgen.errors import EngineError


def check(name: str, tensor: torch.Tensor, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """The tensor, if it has that dtype and shape and is contiguous.  Raises EngineError."""
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else ", not contiguous"
        raise EngineError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}{layout}; the kernel takes {dtype} {list(shape)}"
        )
    return tensor
