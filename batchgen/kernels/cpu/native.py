"""The compiled kernels, and the check that stands between a tensor and a raw address."""

from types import ModuleType

import torch

from batchgen.errors import EngineError

try:
    from batchgen import _cpu
except ImportError as error:  # a checkout that was never built; nothing else may use a CPU kernel either
    _cpu, _reason = None, str(error)


def library() -> ModuleType:
    """The extension module. Raises EngineError when it was not built."""
    if _cpu is None:
        raise EngineError(f"the CPU kernels are not built ({_reason})", hint="pip install . needs a C++20 compiler")
    return _cpu


def address(tensor: torch.Tensor | None, dtype: torch.dtype, *shape: int) -> int:
    """Where the tensor's data lies; 0 for None. Raises EngineError unless dtype, shape and layout are as said."""
    if tensor is None:
        return 0
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous() or not tensor.is_cpu:
        found = f"{tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()} on {tensor.device}"
        raise EngineError(f"a kernel wants contiguous {dtype} {shape} on the CPU, got {found}")
    return tensor.data_ptr()


def require_multiple(name: str, value: int, multiple: int) -> None:
    """Raises EngineError unless `value` is a multiple: the kernels read and write whole vectors."""
    if value % multiple:
        raise EngineError(f"{name} is {value}; the kernels take multiples of {multiple}")


def require_native() -> None:
    """Raises EngineError unless this machine has the matrix unit of profile native-amx/1."""
    if not library().has_amx():
        hint = "portable/1 runs on every processor, and gives other bits"
        raise EngineError("native-amx/1 needs a processor with AMX (bfloat16), and Linux", hint=hint)


def set_threads(n: int) -> None:
    """Use n threads for every op. The number cannot be seen in the bits."""
    library().set_threads(n)


def machine() -> dict[str, str | int]:
    """What the ops run on: instruction_set and threads. Neither can be seen in the bits."""
    return {"instruction_set": library().in_use(), "threads": library().threads()}
