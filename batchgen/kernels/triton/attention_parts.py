"""The arithmetic that the attention kernels share: what decides their bits."""

import triton
import triton.language as tl


@triton.jit
def fresh(ROWS: tl.constexpr, DP: tl.constexpr):
    """Of one split: maximum [ROWS], sum of exponentials [ROWS, 16] (16 equal columns), weighted values [ROWS, DP]."""
    m = tl.full([ROWS], float("-inf"), tl.float32)
    return m, tl.zeros([ROWS, 16], tl.float32), tl.zeros([ROWS, DP], tl.float32)


@triton.jit
def fresh_total(ROWS: tl.constexpr, DP: tl.constexpr):
    """Of the splits so far: maximum [ROWS], sum [ROWS], weighted values [ROWS, DP]."""
    m = tl.full([ROWS], float("-inf"), tl.float32)
    return m, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DP], tl.float32)


@triton.jit
def merge(M, Z, A, m, z, acc):
    """The splits so far, and the next split (its sum [ROWS]), as one."""
    top = tl.maximum(M, m)
    safe = tl.where(top == float("-inf"), 0.0, top)
    old, new = tl.exp2(M - safe), tl.exp2(m - safe)
    return top, tl.fma(z, new, Z * old), tl.fma(acc, tl.broadcast_to(new[:, None], acc.shape), A * old[:, None])


@triton.jit
def advance(start, M, Z, A, m, z, acc, CUT: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr):
    """At the first position of a split: merge what the split before left, and begin anew."""
    if (start % CUT == 0) & (start > 0):
        M, Z, A = merge(M, Z, A, m, tl.max(z, 1), acc)
        m, z, acc = fresh(ROWS, DP)
    return M, Z, A, m, z, acc


@triton.jit
def normalised(Z, A):
    """The output rows, zero where no position was seen; -0 becomes +0, since later masked blocks would do the same."""
    out = A / tl.where(Z == 0.0, 1.0, Z)[:, None]
    return tl.where(out == 0.0, 0.0, out)


@triton.jit
def one_block(
    q, KC, VC, table, start, last, rows, kvh, ones, scale, m, z, acc,
    HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the positions start .. start + BN into the split's state. MASKED: some row may not see all of them."""
    position = start + tl.arange(0, BN)
    d = tl.arange(0, DP)
    there = position < last
    if MASKED:
        block = tl.load(table + position // BS, mask=there, other=0)
    else:
        block = tl.load(table + position // BS)
    at = ((block.to(tl.int64) * HK + kvh) * BS + position % BS)[:, None] * D + d[None, :]
    if MASKED:
        inside = there[:, None] & (d < D)[None, :]
    else:
        inside = (position >= 0)[:, None] & (d < D)[None, :]
    if MASKED or D != DP:
        k = tl.load(KC + at, mask=inside, other=0.0)
    else:
        k = tl.load(KC + at)
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(position[None, :] <= rows[:, None], s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1) * scale)
    safe = top
    if MASKED:
        safe = tl.where(top == float("-inf"), 0.0, top)
    p = tl.exp2(tl.fma(s, tl.zeros_like(s) + scale, tl.broadcast_to(-safe[:, None], s.shape))).to(tl.bfloat16)
    shrink = tl.exp2(m - safe)[:, None]
    z = tl.dot(p, ones, z * shrink)
    if MASKED or D != DP:
        v = tl.load(VC + at, mask=inside, other=0.0)
    else:
        v = tl.load(VC + at)
    acc = tl.dot(p, v, acc * shrink)
    return top, z, acc
