"""How kernels follow each other on the device.

From compute capability 9.0 on a kernel may be launched while the one before it still runs (programmatic dependent
launch). Every kernel here then calls `begin` before it reads what another kernel wrote and before it writes anything:
it waits there until the kernel before has ended and all its writes can be seen. Only then does it let the next kernel
start, so that what stands before `begin` in a kernel may run beside its predecessor and beside no other: constants
(weights) may be touched there, and nothing else.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

early_rows = 16  # it pays for steps of so few tokens, whose kernels are short; no bit depends on it


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the kernel before; let the kernel after start its own way to this point."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@cache
def _can_start_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def options(tensor: torch.Tensor) -> dict[str, bool]:
    """The launch options for a kernel on the tensor's device; its first dimension is the tokens."""
    pdl = tensor.shape[0] <= early_rows and _can_start_early(tensor.device)
    return {"PDL": pdl, "launch_pdl": pdl}
