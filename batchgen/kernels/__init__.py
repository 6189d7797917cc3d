"""The ops of a decoder, each chosen by the device of its first tensor. There is one path a device: no mode switch,
no fallback. `reference` holds the plain twin that defines each.

Dtypes, shapes and layouts are checked; token ids, positions, slots, block tables and query starts are trusted to lie
in their ranges, which the engine sees to.

Shape legend: T tokens of a step, S sequences, H hidden, Hq query heads, Hk key-value heads, D head dimension,
N and K a linear's outputs and inputs, P ceil(N / 32) panels, V vocabulary.
"""

from types import ModuleType
from typing import TypeAlias

import torch

from batchgen.errors import EngineError
from batchgen.kernels import cpu
from batchgen.kernels.packing import PackedWeight
from batchgen.kernels.sample_rows import Draws, SampleRows

__all__ = ["PackedWeight", "attention", "embedding", "linear", "linear_silu_mul", "rms_norm", "rotary_store", "sample"]

Tensor: TypeAlias = torch.Tensor


def _on(tensor: Tensor) -> ModuleType:
    if not tensor.is_cpu:
        raise EngineError(f"there are no kernels for {tensor.device}", hint="this version runs on CPUs")
    return cpu


def linear(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """residual + (x weight^T + bias), in `out` where it is given.

    x bf16 [T, K]; bias float32 [N]; residual, out float32 [T, N] -> float32 [T, N].
    """
    return _on(x).linear(x, weight, bias, residual, out)  # type: ignore[no-any-return]


def embedding(ids: Tensor, table: PackedWeight) -> Tensor:
    """Rows of the table.  ids int32 [T] -> float32 [T, H]."""
    return _on(ids).embedding(ids, table)  # type: ignore[no-any-return]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight.  x float32 [T, H], weight float32 [H] -> bf16 [T, H]."""
    return _on(x).rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def linear_silu_mul(x: Tensor, weight: PackedWeight) -> Tensor:
    """silu(gate) * up, gate above up in the linear's output.  x bf16 [T, K], weight [2 I, K] -> bf16 [T, I]."""
    return _on(x).linear_silu_mul(x, weight)  # type: ignore[no-any-return]


def rotary_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rotary: tuple[Tensor, Tensor],
    place: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    """Norm (where the model has it) and turn the heads of q and k; write k and v to the cache; return q.

    qkv float32 [T, (Hq + 2 Hk) D]; norms: q's and k's weight float32 [D]; rotary: cos, sin float32 [positions, D/2];
    place: positions int32 [T], slots int64 [T] (block * 32 + offset); cache: k bf16 [blocks, Hk, D/2, 32, 2] and
    v bf16 [blocks, Hk, 16, D, 2], written in place.  Returns q bf16 [T, Hq, D].
    """
    return _on(qkv).rotary_store(qkv, norms, eps, rotary, place, cache)  # type: ignore[no-any-return]


def attention(
    q: Tensor, cache: tuple[Tensor, Tensor], block_tables: Tensor, query_start: Tensor, positions: Tensor
) -> Tensor:
    """Causal attention over the paged cache; one path for prefill and decode.

    q bf16 [T, Hq, D]; cache as in `rotary_store`; block_tables int32 [S, blocks of the longest]; query_start int32
    [S + 1] (the tokens of sequence s are query_start[s] .. query_start[s+1]); positions int32 [T].
    Returns bf16 [T, Hq * D].
    """
    return _on(q).attention(q, cache, block_tables, query_start, positions)  # type: ignore[no-any-return]


def sample(logits: Tensor, rows: SampleRows, *, processed_logprobs: bool) -> Draws:
    """Draw one token for each row.  logits float32 [R, V], raw, only read."""
    return _on(logits).sample(logits, rows, processed_logprobs=processed_logprobs)  # type: ignore[no-any-return]
