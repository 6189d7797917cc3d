"""The tensor-core ops of the native profiles, in Triton. Each has its plain twin in kernels/reference/native.py."""

from batchgen.kernels.step_shape import StepShape
from batchgen.kernels.triton.attention import attention
from batchgen.kernels.triton.combine import combine
from batchgen.kernels.triton.expert_proof import prove_experts
from batchgen.kernels.triton.experts import experts
from batchgen.kernels.triton.linear import linear, linear_silu_mul
from batchgen.kernels.triton.proof import Refused, prove
from batchgen.kernels.triton.rotary import rotary_store
from batchgen.kernels.triton.route import route
from batchgen.kernels.triton.rows import add_rms_norm, embedding, silu_mul

__all__ = [
    "Refused",
    "StepShape",
    "add_rms_norm",
    "attention",
    "combine",
    "embedding",
    "experts",
    "linear",
    "linear_silu_mul",
    "prove",
    "prove_experts",
    "rotary_store",
    "route",
    "silu_mul",
]
