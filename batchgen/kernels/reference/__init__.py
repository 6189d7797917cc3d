"""The plain twin of each op: its definition."""

from batchgen.kernels.reference.moe import combine, experts, route
from batchgen.kernels.reference.ops import attention, embedding, linear, linear_silu_mul, rms_norm, rotary_store
from batchgen.kernels.reference.sampler import sample

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
