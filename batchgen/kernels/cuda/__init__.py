"""The profile portable/1 on an NVIDIA GPU: CUDA C++ sources compiled at run time, launched on torch's current stream.

Shapes and dtypes are those of batchgen.kernels; the bits are those of the CPU. No op waits for the device but
`sample`, which answers in numpy. Needs the package cuda-core, which is imported when an op first runs.
"""

from batchgen.kernels.cuda.moe import combine, experts, route
from batchgen.kernels.cuda.ops import attention, embedding, linear, linear_silu_mul, rms_norm, rotary_store
from batchgen.kernels.cuda.sampler import sample

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
