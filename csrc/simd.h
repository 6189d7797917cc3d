// Sixteen float lanes, on every instruction set.
//
// The profile fixes how many lanes a reduction has (16), not the hardware: AVX-512 holds them in one
// register, AVX2 in two, NEON in four, and `scalar` in an array. Each kernel is written once against
// `vf` (16 x float32), `vu` (16 x uint32) and `vm` (16 x bool) and compiled once for each set, so that
// equal bits follow from equal text. Every operation here is one IEEE-754 operation a lane, correctly
// rounded; there is no approximate reciprocal, no flush of denormals, no contraction.
//
//   load store set1 + - * / fma accumulate max min   float lanes; max(a, b) is a > b ? a : b
//   & | ^ + - shl shr                             unsigned lanes, modulo 2^32
//   mul_wide (low and high half of the products), transpose4 (the 4 x 4 blocks of four unsigned vectors)
//   round (to integer, ties to even), to_int (as two's complement), from_int
//   lt le eq select first bits                    masks; bit i of bits() is lane i
//   tree_sum lane_max                             all lanes to one, by the profile's tree: low half with high half,
//                                                 8 lanes, then 4, 2, 1
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define INLINE inline __attribute__((always_inline))

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define ISA_scalar 1
#define ISA_avx2 2
#define ISA_avx512 3
#define ISA_neon 4
#define ISA_amx 5
#define ISA_ID CAT(ISA_, ISA)

#if ISA_ID == ISA_avx512 || ISA_ID == ISA_amx
#include "simd_avx512.h"
#elif ISA_ID == ISA_avx2
#include "simd_avx2.h"
#elif ISA_ID == ISA_neon
#include "simd_neon.h"
#else
#include "simd_scalar.h"
#endif

namespace batchgen::ISA {

// A bfloat16 pair in one uint32: the even element low, the odd one high.
INLINE vf low_bf16(vu pair) { return as_float(shl<16>(pair)); }
INLINE vf high_bf16(vu pair) { return as_float(pair & set1(0xffff0000u)); }

// float32 -> bfloat16 in the low 16 bits, ties to even; a NaN stays a NaN.
INLINE vu round_bf16(vf x) {
  const vu u = as_uint(x);
  const vu rounded = shr<16>(u + set1(0x7fffu) + (shr<16>(u) & set1(1u)));
  const vm nan = lt(set1(0x7f800000u), u & set1(0x7fffffffu));
  return select(nan, set1(0x7fc0u), rounded);
}

INLINE void store_bf16(uint16_t* p, vf x) { store_low16(p, round_bf16(x)); }

}  // namespace batchgen::ISA
