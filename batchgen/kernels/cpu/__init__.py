"""Profile portable/1 on a CPU: checked, thin calls into csrc/. Shapes and dtypes are those of batchgen.kernels."""

from batchgen.kernels.cpu.ops import attention, embedding, linear, rms_norm, rotary_store, silu_mul

__all__ = ["attention", "embedding", "linear", "rms_norm", "rotary_store", "silu_mul"]
