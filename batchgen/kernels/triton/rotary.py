"""Bias, norm and rotation of the heads of one token, and its keys and values to the paged cache."""

import torch
import triton
import triton.language as tl

from batchgen.errors import EngineError
from batchgen.kernels.constants import BLOCK_SIZE, MAX_HEAD_DIM
from batchgen.kernels.triton.checks import check
from batchgen.kernels.triton.launch import begin, options

_TILE = 1024  # elements of one program: a few heads of one token
_WARPS = 4


@triton.jit
def _half_heads(QKV, BIAS, place, ok, HAS_BIAS: tl.constexpr):
    x = tl.load(QKV, mask=ok, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(BIAS + place, mask=ok, other=0.0)
    return x


@triton.jit
def _rotary_store(
    QKV, BIAS, QW, KW, COS, SIN, POSITIONS, SLOTS, Q, KC, VC, eps,
    HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, BS: tl.constexpr,
    HAS_BIAS: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token, as two tiles [HEADS, D/2]: the rotation's pairs are (a[i], b[i])."""
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, HALF)[None, :]
    inside = i < D // 2
    ok = (head < HQ + 2 * HK) & inside
    is_q, is_v = head < HQ, head >= HQ + HK
    begin(PDL)
    at = head * D + i
    row = QKV + t * ((HQ + 2 * HK) * D)
    a = _half_heads(row + at, BIAS, at, ok, HAS_BIAS)
    b = _half_heads(row + at + D // 2, BIAS, at + D // 2, ok, HAS_BIAS)
    raw_a, raw_b = a, b
    if NORM:
        inverse = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(a * a + b * b, 1) / D + eps))[:, None]
        weight_a = tl.where(is_q, tl.load(QW + i, mask=inside, other=0.0), tl.load(KW + i, mask=inside, other=0.0))
        i_b = i + D // 2
        weight_b = tl.where(is_q, tl.load(QW + i_b, mask=inside, other=0.0), tl.load(KW + i_b, mask=inside, other=0.0))
        a = a * inverse * weight_a
        b = b * inverse * weight_b
    position = tl.maximum(tl.load(POSITIONS + t), 0)
    cos = tl.load(COS + position * (D // 2) + i, mask=inside, other=0.0)
    sin = tl.load(SIN + position * (D // 2) + i, mask=inside, other=0.0)
    turned_a = tl.where(is_v, raw_a, a * cos - b * sin).to(tl.bfloat16)
    turned_b = tl.where(is_v, raw_b, b * cos + a * sin).to(tl.bfloat16)
    q = Q + t * (HQ * D) + at
    tl.store(q, turned_a, mask=ok & is_q)
    tl.store(q + D // 2, turned_b, mask=ok & is_q)
    slot = tl.load(SLOTS + t)
    block, inner = slot // BS, slot % BS
    is_k = (head >= HQ) & (head < HQ + HK)
    key = KC + ((block * HK + head - HQ) * BS + inner) * D + i
    tl.store(key, turned_a, mask=ok & is_k & (slot >= 0))
    tl.store(key + D // 2, turned_b, mask=ok & is_k & (slot >= 0))
    value = VC + ((block * HK + head - HQ - HK) * BS + inner) * D + i
    tl.store(value, turned_a, mask=ok & is_v & (slot >= 0))
    tl.store(value + D // 2, turned_b, mask=ok & is_v & (slot >= 0))


def rotary_store(
    qkv: torch.Tensor,
    bias: torch.Tensor | None,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    rotary: tuple[torch.Tensor, torch.Tensor],
    place: tuple[torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Add the bias; norm (where the model has it) and turn the heads of q and k; write k and v to the cache; return q.

    qkv bf16 [T, (Hq + 2 Hk) D]; bias float32 [(Hq + 2 Hk) D]; norms: q's and k's weight float32 [D]; rotary: cos, sin
    float32 [positions, D/2]; place: positions int32 [T], slots int64 [T] (block * 32 + offset; a negative one is
    padding: nothing is written); cache: k and v bf16 [blocks, Hk, 32, D], written in place.  -> q bf16 [T, Hq, D].
    """
    T, width = qkv.shape
    blocks, Hk, _, D = cache[0].shape
    Hq = width // D - 2 * Hk
    if D % 16 or D > MAX_HEAD_DIM or Hq < 1:
        raise EngineError(
            f"head_dim is {D} and qkv {width} wide; head_dim must be a multiple of 16, {MAX_HEAD_DIM} at most"
        )
    check("qkv", qkv, torch.bfloat16, T, (Hq + 2 * Hk) * D)
    for name, part in (("the cache of keys", cache[0]), ("the cache of values", cache[1])):
        check(name, part, torch.bfloat16, blocks, Hk, BLOCK_SIZE, D)
    for table in rotary:
        check("a rotary table", table, torch.float32, rotary[0].shape[0], D // 2)
    check("positions", place[0], torch.int32, T)
    check("slots", place[1], torch.int64, T)
    for weight in norms or ():
        check("a head norm's weight", weight, torch.float32, D)
    if bias is not None:
        check("the bias of qkv", bias, torch.float32, width)
    q = torch.empty(T, Hq, D, dtype=torch.bfloat16, device=qkv.device)
    if T:
        half = triton.next_power_of_2(D // 2)
        heads = _TILE // (2 * half)
        q_norm, k_norm = norms or (rotary[0], rotary[0])
        _rotary_store[(T, triton.cdiv(Hq + 2 * Hk, heads))](
            qkv, rotary[0] if bias is None else bias, q_norm, k_norm, *rotary, *place, q, *cache, eps,
            Hq, Hk, D, half, heads, BLOCK_SIZE, bias is not None, norms is not None, num_warps=_WARPS, **options(qkv),
        )  # fmt: skip
    return q
