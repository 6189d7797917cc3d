"""The plain twin of each op: its definition."""

from batchgen.kernels.reference.ops import attention, embedding, linear, rms_norm, rotary_store, silu_mul

__all__ = ["attention", "embedding", "linear", "rms_norm", "rotary_store", "silu_mul"]
