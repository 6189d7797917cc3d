"""The ops of a decoder, each chosen by the device of its first tensor. There is one path a device: no mode switch,
no fallback. `reference` holds the plain twin that defines each.

Dtypes, shapes and layouts are checked; token ids, positions, slots, block tables and query starts are trusted to lie
in their ranges, which the engine sees to.

Shape legend: T tokens of a step, S sequences, H hidden, Hq query heads, Hk key-value heads, D head dimension,
N and K a linear's outputs and inputs, V vocabulary. Of a MoE layer: E experts, k of them a token, I their inner size,
R rows that are here, P (row, expert) pairs, S slots, each with the weights of one expert.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import ModuleType
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray

from batchgen.errors import EngineError
from batchgen.kernels import cpu, cuda
from batchgen.kernels.cache_rows import cache_rows
from batchgen.kernels.packing import PackedExperts, PackedWeight
from batchgen.kernels.routing import Pairs, Routing
from batchgen.kernels.sample_rows import Draws, SampleRows

__all__ = [
    "Outputs",
    "PackedExperts",
    "PackedWeight",
    "Pairs",
    "Routing",
    "attention",
    "combine",
    "embedding",
    "experts",
    "is_watched",
    "linear",
    "linear_silu_mul",
    "rms_norm",
    "rotary_store",
    "route",
    "sample",
    "told",
    "watch",
]

Tensor: TypeAlias = torch.Tensor
Outputs: TypeAlias = Mapping[str, Tensor | NDArray[Any]]  # by name; the rows of all are those of the op
Observer: TypeAlias = Callable[[str, Outputs], None]

_observers: list[Observer] = []


@contextmanager
def watch(observer: Observer) -> Iterator[None]:
    """While it is open, each op tells `observer` its name and its outputs, which are to be read before it returns.

    They are "out", of `rotary_store` "q" and the "k" and "v" of the same tokens, of `route` "experts" and "weights", of
    `sample` the fields of Draws. `experts` tells nothing, for its rows need not be of this rank's tokens: who calls it
    tells of "experts" once the answers are home, [T, k, H].
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def is_watched() -> bool:
    """Whether any observer is there: then every op must run by itself."""
    return bool(_observers)


def told(op: str, out: Tensor, further: Outputs | None = None) -> Tensor:
    """`out`, once every observer was told of it: for the ops here, and for those of a native profile."""
    for observer in _observers:
        observer(op, {"out": out} if further is None else further)
    return out


def _on(tensor: Tensor) -> ModuleType:
    if tensor.is_cpu:
        return cpu
    if tensor.is_cuda:
        return cuda
    raise EngineError(f"there are no kernels for {tensor.device}", hint="this version runs on CPUs and NVIDIA GPUs")


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
    return told("linear", _on(x).linear(x, weight, bias, residual, out))


def embedding(ids: Tensor, table: PackedWeight) -> Tensor:
    """Rows of the table.  ids int32 [T] -> float32 [T, H]."""
    return told("embedding", _on(ids).embedding(ids, table))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight.  x float32 [T, H], weight float32 [H] -> bf16 [T, H]."""
    return told("rms_norm", _on(x).rms_norm(x, weight, eps))


def linear_silu_mul(x: Tensor, weight: PackedWeight) -> Tensor:
    """silu(gate) * up, gate above up in the linear's output.  x bf16 [T, K], weight [2 I, K] -> bf16 [T, I]."""
    return told("linear_silu_mul", _on(x).linear_silu_mul(x, weight))


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
    q: Tensor = _on(qkv).rotary_store(qkv, norms, eps, rotary, place, cache)
    if _observers:
        k, v = cache_rows(cache, place[1])
        told("rotary_store", q, {"q": q, "k": k, "v": v})
    return q


def attention(
    q: Tensor, cache: tuple[Tensor, Tensor], block_tables: Tensor, query_start: Tensor, positions: Tensor
) -> Tensor:
    """Causal attention over the paged cache; one path for prefill and decode.

    q bf16 [T, Hq, D]; cache as in `rotary_store`; block_tables int32 [S, blocks of the longest]; query_start int32
    [S + 1] (the tokens of sequence s are query_start[s] .. query_start[s+1]); positions int32 [T].
    Returns bf16 [T, Hq * D].
    """
    return told("attention", _on(q).attention(q, cache, block_tables, query_start, positions))


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """Choose each token's experts, by (score descending, id ascending), and weigh them.

    logits float32 [T, E], bias float32 [E] of a sigmoid router -> int32 [T, k], ids ascending, and float32 [T, k].
    """
    chosen, weights = _on(logits).route(logits, bias, routing)
    told("route", chosen, {"experts": chosen, "weights": weights})
    return chosen, weights


def experts(x: Tensor, pairs: Pairs, gate_up: PackedExperts, down: PackedExperts) -> Tensor:
    """down(silu(gate) * up) of the pair's slot on the pair's row; a row of the result hangs on these two alone.

    x bf16 [R, H]; gate_up S of [2 I, H], gate above up; down S of [H, I] -> float32 [P, H]. Pairs are trusted to name
    rows and slots that exist; P, and any slot's share of it, may be 0.
    """
    y: Tensor = _on(x).experts(x, pairs, gate_up, down)
    return y


def combine(rows: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor) -> Tensor:
    """residual + (the weighted sum of a token's experts, in their order, + shared).

    rows float32 [T, k, H]; weights float32 [T, k]; shared, residual float32 [T, H] -> float32 [T, H].
    """
    return told("combine", _on(rows).combine(rows, weights, shared, residual))


def sample(logits: Tensor, rows: SampleRows, *, processed_logprobs: bool) -> Draws:
    """Draw one token for each row.  logits float32 [R, V], raw, only read."""
    draws: Draws = _on(logits).sample(logits, rows, processed_logprobs=processed_logprobs)
    for observer in _observers:
        observer("sample", {field.name: getattr(draws, field.name) for field in fields(draws)})
    return draws
