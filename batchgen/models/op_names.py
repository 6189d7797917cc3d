"""The ops of one step of a decoder, in the order in which it launches them, under names for people.

It follows models/decoder.py, layers/attention.py, layers/mlp.py and layers/moe.py; the sampler comes after them.
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


_ATTENTION = (
    ("input norm", "rms_norm"),
    ("qkv linear", "linear"),
    ("rotary and cache", "rotary_store"),
    ("attention", "attention"),
    ("attention output linear", "linear"),
    ("post-attention norm", "rms_norm"),
)
_DENSE = (
    ("gate and up linear", "linear_silu_mul"),
    ("down linear", "linear"),
)
_ROUTED = (
    ("router linear", "linear"),
    ("choice of experts", "route"),
    ("experts", "experts"),
)
_SHARED = (
    ("shared gate and up linear", "linear_silu_mul"),
    ("shared down linear", "linear"),
)
_COMBINE = ("sum of experts", "combine")


def _layer(config: ModelConfig, layer: int) -> tuple[tuple[str, str], ...]:
    if config.moe is None or not config.is_moe(layer):
        return (*_ATTENTION, *_DENSE)
    return (*_ATTENTION, *_ROUTED, *(_SHARED if config.moe.shared_size else ()), _COMBINE)


def op_names(config: ModelConfig) -> tuple[OpName, ...]:
    """Every op of a step that draws; one that draws nothing lacks the last, the sampler."""
    return (
        OpName(None, "token embedding", "embedding"),
        *(OpName(layer, role, op) for layer in range(config.num_layers) for role, op in _layer(config, layer)),
        OpName(None, "final norm", "rms_norm", drawn=True),
        OpName(None, "head linear", "linear", drawn=True),
        OpName(None, "sampler", "sample", drawn=True),
    )
