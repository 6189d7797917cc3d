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

}  // namespace batchgen::ISA
