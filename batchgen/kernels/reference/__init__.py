"""The plain twin of each op: its definition."""

from batchgen.kernels.reference.ops import attention, embedding, linear, rms_norm, rotary_store, silu_mul
from batchgen.kernels.reference.sampler import sample

__all__ = ["attention", "embedding", "linear", "rms_norm", "rotary_store", "sample", "silu_mul"]
