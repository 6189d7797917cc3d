"""The ops of one step of a decoder, in the order in which it launches them, under names for people.

It follows models/decoder.py, layers/attention.py and layers/mlp.py; the sampler comes after them.
"""

from typing import NamedTuple

from batchgen.models.config import ModelConfig


class OpName(NamedTuple):
    """One launch in a step."""

    layer: int | None  # None: before or after the layers
    role: str
    op: str  # its name in batchgen.kernels
    drawn: bool = False  # it has a row for each token that is drawn, not for each token of the step

    def __str__(self) -> str:
        return self.role if self.layer is None else f"layer {self.layer}, {self.role}"


_LAYER = (
    ("input norm", "rms_norm"),
    ("qkv linear", "linear"),
    ("rotary and cache", "rotary_store"),
    ("attention", "attention"),
    ("attention output linear", "linear"),
    ("post-attention norm", "rms_norm"),
    ("gate and up linear", "linear_silu_mul"),
    ("down linear", "linear"),
)


def op_names(config: ModelConfig) -> tuple[OpName, ...]:
    """Every op of a step that draws; one that draws nothing lacks the last, the sampler."""
    return (
        OpName(None, "token embedding", "embedding"),
        *(OpName(layer, role, op) for layer in range(config.num_layers) for role, op in _LAYER),
        OpName(None, "final norm", "rms_norm", drawn=True),
        OpName(None, "head linear", "linear", drawn=True),
        OpName(None, "sampler", "sample", drawn=True),
    )
