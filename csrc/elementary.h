// Elementary functions of the profile portable/1: written polynomials over the operations of simd.h.
// Each has a twin in batchgen/kernels/reference/elementary.py with the same coefficients and the same order.
#pragma once

#include "simd.h"

namespace batchgen::ISA {

// 2^n for -126 <= n <= 127.
INLINE vf power_of_two(vu n) { return as_float(shl<23>(n + set1(127u))); }

// e^x, x clamped to [-104, 88]: 0 below (the least subnormal is e^-103.3), 1.65e38 above; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln2/2; Taylor to degree 7 in Horner form (relative error below 2e-9 before
// rounding); 2^n applied as two exact factors, so that a subnormal result is rounded once.
INLINE vf exp(vf argument) {
  const vf x = min(max(argument, set1(-104.0f)), set1(88.0f));
  const vf n = round(x * set1(0x1.715476p+0f));
  vf r = fma(n, set1(-0x1.62e4p-1f), x);
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  vf p = set1(0x1.a01a02p-13f);
  p = fma(p, r, set1(0x1.6c16c2p-10f));
  p = fma(p, r, set1(0x1.111112p-7f));
  p = fma(p, r, set1(0x1.555556p-5f));
  p = fma(p, r, set1(0x1.555556p-3f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const vf half = round(n * set1(0.5f));
  const vf y = p * power_of_two(to_int(half)) * power_of_two(to_int(n - half));
  return select(eq(argument, argument), y, argument);
}

// x = 2^k (1 + f) with 1 + f in [0x1.6a09e6p-1, 2 * 0x1.6a09e6p-1); both parts exact. x is normal and positive.
struct Split { vf k, f; };
INLINE Split split(vf x) {
  const vu low = set1(0x3f3504f3u);  // the bits of 0x1.6a09e6p-1
  const vu shifted = as_uint(x) + (set1(0x3f800000u) - low);
  return {from_int(shr<23>(shifted) - set1(127u)), as_float((shifted & set1(0x007fffffu)) + low) - set1(1.0f)};
}

// k ln 2 + log(1 + f). log(1 + f) = f + f^2 q(f), q(0) = -1/2 (relative error of the polynomial below 2^-27);
// k times the upper part of ln 2 is exact.
INLINE vf log(Split x) {
  const vf f = x.f;
  vf q = set1(-0x1.41ed4ep-4f);
  q = fma(q, f, set1(0x1.07d0ccp-3f));
  q = fma(q, f, set1(-0x1.0ce08ep-3f));
  q = fma(q, f, set1(0x1.226e5p-3f));
  q = fma(q, f, set1(-0x1.54788ap-3f));
  q = fma(q, f, set1(0x1.99a596p-3f));
  q = fma(q, f, set1(-0x1.00022p-2f));
  q = fma(q, f, set1(0x1.55554ap-2f));
  q = fma(q, f, set1(-0.5f));
  const vf tail = fma(x.k, set1(0x1.7f7d1cp-20f), f * f * q);
  return fma(x.k, set1(0x1.62e4p-1f), f + tail);
}

// Natural logarithm: -infinity of either zero, NaN of what is negative; infinity and NaN stay.
INLINE vf log(vf x) {
  const vm is_small = lt(x, set1(0x1p-126f));
  Split s = split(select(is_small, x * set1(0x1p23f), x));
  s.k = select(is_small, s.k - set1(23.0f), s.k);
  vf y = select(lt(x, set1(__builtin_inff())), log(s), x);
  y = select(lt(zero(), x), y, set1(-__builtin_inff()));
  y = select(lt(x, zero()), set1(__builtin_nanf("")), y);
  return select(eq(x, x), y, x);
}

// g / (1 + e^-g) * u.
INLINE vf silu_mul(vf g, vf u) { return g / (set1(1.0f) + exp(zero() - g)) * u; }

}  // namespace batchgen::ISA
