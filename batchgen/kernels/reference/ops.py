"""Linear, row ops and attention in plain numpy, one float operation at a time: what the fast kernels must equal.

Shapes and dtypes are those of batchgen.kernels. Written to be read and compared with; slow.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.kernels.constants import BLOCK_SIZE, K_BLOCK, LANES
from batchgen.kernels.packing import PackedWeight, unpack
from batchgen.kernels.reference.elementary import exp, fma

Tensor = torch.Tensor
Array = NDArray[np.float32]

ZERO, ONE = np.float32(0), np.float32(1)


def _array(x: Tensor) -> Array:
    return x.to(torch.float32).numpy()


def _bf16(x: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16)


def tree_sum(x: Array) -> Array:
    """[…, 16] -> […]: halves of 8, 4, 2, 1."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """Per output: products summed from +0 with k ascending inside a K-block; block sums added with blocks ascending."""
    a, w = _array(x), _array(unpack(weight))
    y = np.zeros((len(a), len(w)), np.float32)
    for k0 in range(0, a.shape[1], K_BLOCK):
        total = np.zeros_like(y)
        for k in range(k0, min(k0 + K_BLOCK, a.shape[1])):
            total = fma(a[:, k, None], w[None, :, k], total)
        y = total if k0 == 0 else y + total
    if bias is not None:
        y = y + _array(bias)
    if residual is not None:
        y = _array(residual) + y
    return torch.from_numpy(y)


def embedding(ids: Tensor, table: PackedWeight) -> Tensor:
    return unpack(table)[ids.long()].to(torch.float32)


def _inverse_rms(x: Array, eps: float) -> Array:
    """[…, H] -> […, 1]: 16 strided lanes of squares, each ascending, then the tree."""
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    for i in range(0, x.shape[-1], LANES):
        v = x[..., i : i + LANES]
        lanes = fma(v, v, lanes)
    mean = tree_sum(lanes) / np.float32(x.shape[-1])
    return (ONE / np.sqrt(mean + np.float32(eps)))[..., None]  # type: ignore[no-any-return]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    a = _array(x)
    return _bf16(a * _inverse_rms(a, eps) * _array(weight))


def linear_silu_mul(x: Tensor, weight: PackedWeight) -> Tensor:
    gate, up = np.split(_array(linear(x, weight)), 2, axis=1)
    with np.errstate(over="ignore"):  # to infinity, as IEEE-754 says
        return _bf16(gate / (ONE + exp(ZERO - gate)) * up)


def _turn(x: Array, norm: Tensor | None, eps: float, cos: Array, sin: Array) -> Tensor:
    """Heads [T, heads, D]: norm, then the rotation of the pairs (x[i], x[i + D/2])."""
    if norm is not None:
        x = x * _inverse_rms(x, eps) * _array(norm)
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.broadcast_to(cos[:, None], a.shape), np.broadcast_to(sin[:, None], a.shape)
    return _bf16(np.concatenate([fma(a, cos, ZERO - b * sin), fma(b, cos, a * sin)], axis=-1))


def rotary_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rotary: tuple[Tensor, Tensor],
    place: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    Hk, D = cache[1].shape[1], cache[1].shape[3]
    heads = _array(qkv).reshape(len(qkv), -1, D)
    Hq = heads.shape[1] - 2 * Hk
    cos, sin = (_array(table)[place[0].numpy()] for table in rotary)
    q_norm, k_norm = norms or (None, None)
    k = _turn(heads[:, Hq : Hq + Hk], k_norm, eps, cos, sin)
    v = _bf16(heads[:, Hq + Hk :])
    for t, slot in enumerate(place[1].tolist()):
        block, at = divmod(slot, BLOCK_SIZE)
        cache[0][block, :, :, at, :] = k[t].view(Hk, D // 2, 2)
        cache[1][block, :, at // 2, :, at % 2] = v[t]
    return _turn(heads[:, :Hq], q_norm, eps, cos, sin)


def attention(
    q: Tensor, cache: tuple[Tensor, Tensor], block_tables: Tensor, query_start: Tensor, positions: Tensor
) -> Tensor:
    T, Hq, D = q.shape
    blocks, Hk = cache[0].shape[:2]
    keys = _array(cache[0]).transpose(0, 1, 2, 4, 3).reshape(blocks, Hk, D, BLOCK_SIZE)
    values = _array(cache[1]).transpose(0, 1, 2, 4, 3).reshape(blocks, Hk, BLOCK_SIZE, D)
    out = np.empty((T, Hq, D), np.float32)
    for s, (begin, end) in enumerate(zip(query_start[:-1].tolist(), query_start[1:].tolist(), strict=True)):
        for t in range(begin, end):
            length = int(positions[t]) + 1
            table = block_tables[s, : -(-length // BLOCK_SIZE)].tolist()
            for h in range(Hq):
                kv = h // (Hq // Hk)
                past = [(keys[b, kv], values[b, kv]) for b in table]
                out[t, h] = _attend(_array(q[t, h]), past, length)
    return _bf16(out).view(T, Hq * D)


def _attend(query: Array, past: list[tuple[Array, Array]], length: int) -> Array:
    """One head of one token over blocks of keys [D, 32] and values [32, D]; what lies past `length` is not read."""
    D = len(query)
    maximum, weight_sum, mixed = np.float32(0), np.zeros((), np.float32), np.zeros(D, np.float32)
    for b, (key, value) in enumerate(past):
        valid = min(BLOCK_SIZE, length - b * BLOCK_SIZE)
        score = np.zeros(valid, np.float32)
        for d in range(D):
            score = fma(query[d], key[d, :valid], score)
        score = score * np.float32(1 / np.sqrt(np.float64(D)))
        new_maximum = score.max() if b == 0 else max(maximum, score.max())
        weight = np.zeros(BLOCK_SIZE, np.float32)
        weight[:valid] = exp(score - new_maximum)
        block_sum = tree_sum(weight[:LANES] + weight[LANES:])
        block_mixed = np.zeros(D, np.float32)
        for j in range(valid):
            block_mixed = fma(weight[j], value[j], block_mixed)
        if b == 0:
            weight_sum, mixed = block_sum, block_mixed
        else:
            shrink = exp(maximum - new_maximum)
            weight_sum, mixed = fma(weight_sum, shrink, block_sum), fma(mixed, shrink, block_mixed)
        maximum = new_maximum
    return mixed / weight_sum
