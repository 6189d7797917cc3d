"""The tensor-core ops of the native profiles, in Triton. Each has its plain twin in kernels/reference/native.py."""

from batchgen.kernels.step_shape import StepShape
from batchgen.kernels.triton.attention import attention
from batchgen.kernels.triton.linear import linear, linear_silu_mul
from batchgen.kernels.triton.proof import Refused, prove
from batchgen.kernels.triton.rotary import rotary_store
from batchgen.kernels.triton.rows import add_rms_norm, embedding, silu_mul

__all__ = [
    "Refused",
    "StepShape",
    "add_rms_norm",
    "attention",
    "embedding",
    "linear",
    "linear_silu_mul",
    "prove",
    "rotary_store",
    "silu_mul",
]
