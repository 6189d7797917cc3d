"""Causal attention over the paged cache on the tensor cores: one family of kernels for prefill and decode.

A query row's arithmetic follows from its own position alone. Keys are cut at absolute positions 0, SPLIT, 2 SPLIT, …;
in a split, blocks of INNER positions are folded ascending by online softmax in base 2 from a fresh state, and the
splits' states are merged ascending. The prefill kernel does all of it in registers. The decode kernel writes each
split's state, and `_combine` merges them by the same instructions. Sums run through matrix instructions only (the
denominator is a product with ones), whose bits follow neither the tile nor the number of warps.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from batchgen.errors import EngineError
from batchgen.kernels.constants import BLOCK_SIZE, MAX_HEAD_DIM
from batchgen.kernels.step_shape import StepShape
from batchgen.kernels.triton.attention_parts import advance, fresh, fresh_total, merge, normalised, one_block
from batchgen.kernels.triton.checks import check, room
from batchgen.kernels.triton.launch import begin, options

SPLIT = 256  # constants of the profile
INNER = 64

MAX_GROUP = 128  # query heads of one key-value head
_COMBINED_HEADS = 4  # of one program
_AHEAD = 8  # splits whose states are loaded at once
_DECODE_PROGRAMS = 4096  # about what keeps a large GPU busy: longer contexts get loops instead of more programs


class Launch(NamedTuple):
    """How programs are cut. No bit depends on it: the GPU tests compare them."""

    rows: int
    warps: int
    stages: int


@triton.jit(do_not_specialize=["table_width", "splits"])  # lest each step of another shape is compiled anew
def _decode(
    Q, KC, VC, TABLES, STARTS, POSITIONS, OUT, PM, PL, PA, scale, table_width, splits,
    HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CUT: tl.constexpr, BS: tl.constexpr, DIRECT: tl.constexpr, ALL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One key-value head of a sequence with one query token: some of its splits, or (DIRECT) its only one."""
    s, kvh = tl.program_id(1), tl.program_id(0)
    G: tl.constexpr = HQ // HK
    begin(PDL)
    t = s
    if not ALL:
        t = tl.load(STARTS + s)
        if tl.load(STARTS + s + 1) - t != 1:
            return
    n = tl.load(POSITIONS + t) + 1
    g, d = tl.arange(0, BM), tl.arange(0, DP)
    head = t.to(tl.int64) * HQ + kvh * G + g
    ok = (g < G)[:, None] & (d < D)[None, :]
    q = tl.load(Q + head[:, None] * D + d[None, :], mask=ok, other=0.0)
    rows = tl.zeros([BM], tl.int32) + (n - 1)
    ones = tl.full([BN, 16], 1.0, tl.float32).to(tl.bfloat16)
    table = TABLES + s.to(tl.int64) * table_width
    for split in range(tl.program_id(2), tl.cdiv(n, CUT), tl.num_programs(2)):
        m, z, acc = fresh(BM, DP)
        low = split * CUT
        for start in range(low, tl.minimum(low + CUT, n), BN):
            m, z, acc = one_block(
                q, KC, VC, table, start, n, rows, kvh, ones, scale, m, z, acc, HK, D, DP, BN, BS, True
            )
        if DIRECT:
            M, Z, A = fresh_total(BM, DP)
            M, Z, A = merge(M, Z, A, m, tl.max(z, 1), acc)
            tl.store(OUT + head[:, None] * D + d[None, :], normalised(Z, A).to(tl.bfloat16), mask=ok)
        else:
            at = (s.to(tl.int64) * splits + split) * HQ + kvh * G + g
            tl.store(PM + at, m, mask=g < G)
            tl.store(PL + at, tl.max(z, 1), mask=g < G)
            tl.store(PA + at[:, None] * D + d[None, :], acc, mask=ok)


@triton.jit(do_not_specialize=["splits"])  # lest each step of another shape is compiled anew
def _combine(
    PM, PL, PA, STARTS, POSITIONS, OUT, splits,
    HQ: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, CUT: tl.constexpr, BH: tl.constexpr, AHEAD: tl.constexpr,
    ALL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of BH heads of one sequence, ascending; AHEAD of them are loaded at once."""
    s = tl.program_id(1)
    begin(PDL)
    t = s
    if not ALL:
        t = tl.load(STARTS + s)
        if tl.load(STARTS + s + 1) - t != 1:
            return
    count = tl.cdiv(tl.load(POSITIONS + t) + 1, CUT)
    h = tl.program_id(0) * BH + tl.arange(0, BH)
    d = tl.arange(0, DP)
    ok = (h < HQ)[:, None] & (d < D)[None, :]
    M, Z, A = fresh_total(BH, DP)
    for first in range(0, count, AHEAD):
        for i in tl.static_range(AHEAD):
            split = first + i
            there = split < count
            at = (s.to(tl.int64) * splits + split) * HQ + h
            m = tl.load(PM + at, mask=(h < HQ) & there, other=float("-inf"))
            z = tl.load(PL + at, mask=(h < HQ) & there, other=0.0)
            acc = tl.load(PA + at[:, None] * D + d[None, :], mask=ok & there, other=0.0)
            M, Z, A = merge(M, Z, A, m, z, acc)
    out = OUT + (t.to(tl.int64) * HQ + h)[:, None] * D + d[None, :]
    tl.store(out, normalised(Z, A).to(tl.bfloat16), mask=ok)


@triton.jit(do_not_specialize=["table_width", "sequences"])  # lest each step of another shape is compiled anew
def _prefill(
    Q, KC, VC, TABLES, STARTS, POSITIONS, OUT, scale, table_width, sequences,
    HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CUT: tl.constexpr, BS: tl.constexpr, SP: tl.constexpr, SKIP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BM // G query tokens of one sequence, all the query heads of one key-value head; SKIP: single tokens are others'.

    Sequence s owns the tiles from start[s] // tokens + s on, so that a tile finds its sequence by counting.
    """
    G: tl.constexpr = HQ // HK
    TOKENS: tl.constexpr = BM // G
    kvh = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the long rows of a sequence first
    begin(PDL)
    every = tl.arange(0, SP)
    owner = tl.load(STARTS + every, mask=every < sequences, other=0)
    s = tl.sum(((owner // TOKENS + every <= tile) & (every < sequences)).to(tl.int32), 0) - 1
    t0, t1 = tl.load(STARTS + s), tl.load(STARTS + s + 1)
    first = (tile - (t0 // TOKENS + s)) * TOKENS
    count = t1 - t0
    if first >= count:
        return
    if SKIP:
        if count == 1:
            return
    r, d = tl.arange(0, BM), tl.arange(0, DP)
    token = first + r // G
    p0 = tl.load(POSITIONS + t0)
    rows = p0 + token
    ok = ((token < count) & (r < TOKENS * G))[:, None] & (d < D)[None, :]
    head = (t0 + token).to(tl.int64) * HQ + kvh * G + r % G
    q = tl.load(Q + head[:, None] * D + d[None, :], mask=ok, other=0.0)
    last = p0 + tl.minimum(first + TOKENS, count)
    clear = (p0 + first + 1) // BN * BN  # up to here every row sees every position
    ones = tl.full([BN, 16], 1.0, tl.float32).to(tl.bfloat16)
    table = TABLES + s.to(tl.int64) * table_width
    M, Z, A = fresh_total(BM, DP)
    m, z, acc = fresh(BM, DP)
    for start in range(0, clear, BN):
        M, Z, A, m, z, acc = advance(start, M, Z, A, m, z, acc, CUT, BM, DP)
        m, z, acc = one_block(
            q, KC, VC, table, start, last, rows, kvh, ones, scale, m, z, acc, HK, D, DP, BN, BS, False
        )
    for start in range(clear, last, BN):
        M, Z, A, m, z, acc = advance(start, M, Z, A, m, z, acc, CUT, BM, DP)
        m, z, acc = one_block(q, KC, VC, table, start, last, rows, kvh, ones, scale, m, z, acc, HK, D, DP, BN, BS, True)
    M, Z, A = merge(M, Z, A, m, tl.max(z, 1), acc)
    tl.store(OUT + head[:, None] * D + d[None, :], normalised(Z, A).to(tl.bfloat16), mask=ok)


def attention(
    q: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    positions: torch.Tensor,
    shape: StepShape,
    *,
    launches: tuple[Launch, Launch] | None = None,
) -> torch.Tensor:
    """Causal attention of a step; single tokens and longer queries may be mixed in any order.

    q bf16 [T, Hq, D]; cache: k and v bf16 [blocks, Hk, 32, D]; block_tables int32 [S, blocks of the longest];
    query_start int32 [S + 1] (the tokens of sequence s are query_start[s] .. query_start[s + 1], their positions
    consecutive); positions int32 [T]. A single token at position -1 is padding: it reads nothing and gets zeros.
    `launches`: of decode and prefill, for tests and tuning.  -> bf16 [T, Hq * D].
    """
    T, Hq, D = q.shape
    S, width = block_tables.shape
    blocks, Hk = cache[0].shape[:2]
    if D % 16 or D > MAX_HEAD_DIM or Hq % Hk or Hq // Hk > MAX_GROUP:
        raise EngineError(
            f"head_dim {D}, {Hq} query heads, {Hk} key-value heads; attention takes a head_dim "
            f"that is a multiple of 16, {MAX_HEAD_DIM} at most, and up to {MAX_GROUP} query heads a key-value head"
        )
    check("q", q, torch.bfloat16, T, Hq, D)
    for name, part in (("the cache of keys", cache[0]), ("the cache of values", cache[1])):
        check(name, part, torch.bfloat16, blocks, Hk, BLOCK_SIZE, D)
    check("block_tables", block_tables, torch.int32, S, width)
    check("query_start", query_start, torch.int32, S + 1)
    check("positions", positions, torch.int32, T)
    out = room(T, Hq * D, q)
    decode, prefill = launches or (decode_launch(Hq // Hk, D, S), prefill_launch(Hq // Hk, D))
    step = (q, *cache, block_tables, query_start, positions)
    if shape.singles:
        _run_decode(step, out, shape, decode)
    if shape.longest_query > 1:
        _run_prefill(step, out, shape, prefill)
    return out


def decode_launch(G: int, D: int, S: int) -> Launch:
    """For groups of G query heads and S sequences: one program holds the group."""
    rows = max(16, triton.next_power_of_2(G))
    return Launch(rows, 4 if rows <= 64 else 8, 4 if S <= 8 and D <= 128 else 2)


def prefill_launch(G: int, D: int) -> Launch:
    """For groups of G query heads."""
    if D > 128:
        return Launch(64 if G <= 64 else 128, 8, 2)
    return Launch(64, 4, 2) if G <= 64 else Launch(128, 8, 2)


def _scale(D: int) -> float:
    return math.log2(math.e) / math.sqrt(D)


def _run_decode(step: tuple[torch.Tensor, ...], out: torch.Tensor, shape: StepShape, launch: Launch) -> None:
    q, k, _, tables, starts, positions = step
    (_, Hq, D), Hk, S = q.shape, k.shape[1], len(tables)
    splits = triton.cdiv(shape.longest_context, SPLIT)
    is_all, direct, padded = shape.singles == S, splits <= 1, triton.next_power_of_2(D)
    count = 0 if direct else S * splits * Hq
    state = torch.empty(count * (D + 2), dtype=torch.float32, device=q.device)
    acc, m, z = state[: count * D], state[count * D : count * (D + 1)], state[count * (D + 1) :]
    programs = min(splits, max(4, triton.cdiv(_DECODE_PROGRAMS, S * Hk)))
    _decode[(Hk, S, max(1, programs))](
        *step, out, m, z, acc, _scale(D), tables.shape[1], splits,
        Hq, Hk, D, padded, launch.rows, INNER, SPLIT, BLOCK_SIZE, direct, is_all,
        num_warps=launch.warps, num_stages=launch.stages, **options(q),
    )  # fmt: skip
    if not direct:
        _combine[(triton.cdiv(Hq, _COMBINED_HEADS), S)](
            m, z, acc, starts, positions, out, splits,
            Hq, D, padded, SPLIT, _COMBINED_HEADS, _AHEAD, is_all, num_warps=4, **options(q),
        )  # fmt: skip


def _run_prefill(step: tuple[torch.Tensor, ...], out: torch.Tensor, shape: StepShape, launch: Launch) -> None:
    q, k, _, tables, *_ = step
    (T, Hq, D), Hk, S = q.shape, k.shape[1], len(tables)
    tiles = T // (launch.rows // (Hq // Hk)) + S
    _prefill[(Hk, tiles)](
        *step, out, _scale(D), tables.shape[1], S,
        Hq, Hk, D, triton.next_power_of_2(D), launch.rows, INNER, SPLIT, BLOCK_SIZE,
        triton.next_power_of_2(S), shape.singles > 0, num_warps=launch.warps, num_stages=launch.stages, **options(q),
    )  # fmt: skip
