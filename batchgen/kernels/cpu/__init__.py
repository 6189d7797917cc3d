"""The profiles of a CPU, portable/1 and native-amx/1: checked, thin calls into csrc/.

Shapes and dtypes are those of batchgen.kernels.
"""

from batchgen.kernels.cpu.moe import combine, experts, route
from batchgen.kernels.cpu.ops import attention, embedding, linear, linear_silu_mul, rms_norm, rotary_store
from batchgen.kernels.cpu.sampler import sample

__all__ = [
    "attention",
    "combine",
    "embedding",
    "experts",
    "linear",
    "linear_silu_mul",
    "rms_norm",
    "rotary_store",
    "route",
    "sample",
]
