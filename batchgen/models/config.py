"""ModelConfig: the numbers of a decoder-only model that the arithmetic depends on. No torch.

Floats are held as the float32 values that the kernels use, so that config.json (decimal text) and GGUF
(float32 bits) give equal configs.
"""

import json
import math
import struct
from dataclasses import asdict, dataclass
from decimal import Context, Decimal
from typing import Any, Literal, Self

from batchgen.errors import ModelError
from batchgen.routing import Routing

# Enough digits that rounding the result to float64 is correct for every base and head size in use.
_DECIMAL = Context(prec=50)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. The last three fields belong to "llama3" alone."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Layers whose feed-forward part is a choice of experts; `ModelConfig.intermediate_size` is that of the others."""

    num_experts: int
    inner_size: int  # of one expert
    routing: Routing
    has_bias: bool  # a float32 number for each expert that the choice alone looks at
    shared_size: int  # inner size of the expert that every token goes to; 0: there is none
    dense_layers: tuple[int, ...]  # without experts, ascending

    def check(self, num_layers: int, where: str) -> None:
        """Raises ModelError if the sizes do not fit together."""
        for name, least in (("num_experts", 1), ("inner_size", 2), ("shared_size", 0)):
            if (value := getattr(self, name)) < least:
                raise ModelError(f"{name} is {value}; it must be at least {least}", where=where)
        for name in ("inner_size", "shared_size"):
            if getattr(self, name) % 2:
                raise ModelError(f"{name} is {getattr(self, name)}; odd sizes are not supported", where=where)
        if not 1 <= self.routing.top_k <= self.num_experts:
            message = f"{self.routing.top_k} experts for each token cannot be chosen out of {self.num_experts}"
            raise ModelError(message, where=where)
        if not self.routing.scale > 0:
            raise ModelError(f"the weights of experts are scaled by {self.routing.scale}", where=where)
        if any(not 0 <= layer < num_layers for layer in self.dense_layers):
            raise ModelError(f"there are {num_layers} layers, and dense ones are {self.dense_layers}", where=where)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A pre-norm decoder with RMSNorm, rotary positions (halves rotated), grouped-query attention and SwiGLU.

    `max_context` is the longest sequence for which full causal attention is what the model means:
    `max_position_embeddings`, or the sliding window where that is shorter.
    """

    architecture: str  # the Hugging Face class name, as in `config_json.ARCHITECTURES`
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    max_context: int
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    moe: MoeConfig | None = None

    def is_moe(self, layer: int) -> bool:
        """Whether the layer has experts."""
        return self.moe is not None and layer not in self.moe.dense_layers

    def check(self, where: str) -> Self:
        """Returns self. Raises ModelError if the sizes do not fit together."""
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "max_position_embeddings", "max_context"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; it must be at least 1", where=where)
        for name in ("hidden_size", "intermediate_size", "head_dim"):
            if getattr(self, name) % 2:
                raise ModelError(f"{name} is {getattr(self, name)}; odd sizes are not supported", where=where)
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key-value heads", where=where)
        for name in ("rms_norm_eps", "rope_theta"):
            if not getattr(self, name) > 0:
                raise ModelError(f"{name} is {getattr(self, name)}; it must be above 0", where=where)
        scaling = self.rope_scaling
        if scaling and not (scaling.factor > 0 and scaling.low_freq_factor <= scaling.high_freq_factor):
            raise ModelError(f"makes no sense: {scaling}", where=f"{where}: rope_scaling")
        if self.moe is not None:
            self.moe.check(self.num_layers, where)
        return self

    def arithmetic(self) -> dict[str, Any]:
        """The fields that can change a logit: all but the name, the length limits and the special token ids."""
        apart = ("architecture", "max_position_embeddings", "max_context", "bos_token_id", "eos_token_ids")
        fields = {name: value for name, value in asdict(self).items() if name not in apart}
        if self.moe is None:  # so that the digest of a dense model says nothing of experts
            del fields["moe"]
        return fields

    @property
    def layer_weights(self) -> int:
        """How many weights the linears of one layer have; of the largest, where only some layers have experts."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        inner = self.intermediate_size
        if self.moe is not None:
            inner = self.moe.num_experts * self.moe.inner_size + self.moe.shared_size
        return self.hidden_size * (heads * self.head_dim + 3 * inner)

    def inverse_frequencies(self) -> tuple[float, ...]:
        """Rotary frequencies in radians a position, float64 [head_dim / 2]: the same bits on every machine.

        theta ** (-2i / head_dim) is taken in 50-digit decimals, because a libm's pow differs between machines;
        the scaling after it uses only IEEE + - * /.
        """
        theta = Decimal(self.rope_theta)
        exponents = (_DECIMAL.divide(Decimal(-2 * i), Decimal(self.head_dim)) for i in range(self.head_dim // 2))
        plain = [float(_DECIMAL.power(theta, e)) for e in exponents]
        scaling = self.rope_scaling
        if scaling is None:
            return tuple(plain)
        if scaling.kind == "linear":
            return tuple(f / scaling.factor for f in plain)
        return tuple(_llama3(f, scaling) for f in plain)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`. Raises TypeError, KeyError or ValueError on anything else."""
        fields = json.loads(text)
        scaling, moe = fields.pop("rope_scaling"), fields.pop("moe")
        return cls(
            **{**fields, "eos_token_ids": tuple(fields["eos_token_ids"])},
            rope_scaling=RopeScaling(**scaling) if scaling else None,
            moe=_moe_from_json(moe) if moe else None,
        )


def as_float32(value: float) -> float:
    """The float32 nearest to `value`, as a Python float. Raises OverflowError outside its range."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _moe_from_json(fields: dict[str, Any]) -> MoeConfig:
    routing, dense = Routing(**fields["routing"]), tuple(fields["dense_layers"])
    return MoeConfig(**{**fields, "routing": routing, "dense_layers": dense})


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    """Long waves are stretched by `factor`, short ones kept, those between blended linearly in 1 / wavelength."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if turns >= high:
        return frequency
    if turns <= low:
        return frequency / scaling.factor
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency
