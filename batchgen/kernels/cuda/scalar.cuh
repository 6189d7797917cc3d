// One lane of csrc/simd.h: the same names with the same meaning, so that csrc/elementary.h and csrc/noise.h compile
// for a GPU as they stand. Every operation is one IEEE-754 operation, correctly rounded, subnormals kept.
#pragma once

using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

#define ISA cuda
#define INLINE __device__ __forceinline__  // min, max, exp and log below hide those of CUDA: ::min for integers
#define KERNEL extern "C" __global__ void
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)

namespace batchgen::ISA {

using vf = float;
using vu = uint32_t;
using vm = bool;

INLINE vu load(const uint32_t* p) { return *p; }
INLINE vf set1(float x) { return x; }
INLINE vu set1(uint32_t x) { return x; }
INLINE vf zero() { return 0.0f; }

INLINE vf fma(vf x, vf y, vf z) { return __fmaf_rn(x, y, z); }
INLINE vf max(vf x, vf y) { return x > y ? x : y; }
INLINE vf min(vf x, vf y) { return x < y ? x : y; }
INLINE vf round(vf x) { return rintf(x); }
INLINE vu mul_wide(vu x, vu y, vu& high) {
  high = __umulhi(x, y);
  return x * y;
}
template <int N> INLINE vu shl(vu x) { return x << N; }
template <int N> INLINE vu shr(vu x) { return x >> N; }
INLINE void transpose4(vu (&)[4]) {}  // of one lane: nothing to do

INLINE vf as_float(vu x) { return __uint_as_float(x); }
INLINE vu as_uint(vf x) { return __float_as_uint(x); }
INLINE vu to_int(vf x) { return static_cast<uint32_t>(__float2int_rn(x)); }
INLINE vf from_int(vu x) { return __int2float_rn(static_cast<int32_t>(x)); }

INLINE vm lt(vf x, vf y) { return x < y; }
INLINE vm le(vf x, vf y) { return x <= y; }
INLINE vm eq(vf x, vf y) { return x == y; }
INLINE vm lt(vu x, vu y) { return x < y; }
INLINE vm eq(vu x, vu y) { return x == y; }
INLINE vf select(vm m, vf yes, vf no) { return m ? yes : no; }
INLINE vu select(vm m, vu yes, vu no) { return m ? yes : no; }

// A bfloat16 pair in one uint32: the even element low, the odd one high.
INLINE vf low_bf16(vu pair) { return as_float(pair << 16); }
INLINE vf high_bf16(vu pair) { return as_float(pair & 0xffff0000u); }

// float32 -> bfloat16, ties to even; a NaN stays a NaN.
INLINE vu round_bf16(vf x) {
  const vu u = as_uint(x);
  return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

// All of 16 neighbouring threads to one, by the profile's tree: halves of 8, 4, 2, 1. Every thread of the warp calls
// it and every one of the 16 gets the sum: a + b is b + a.
INLINE float tree_sum(float x) {
  for (int half = 8; half; half /= 2) x = x + __shfl_xor_sync(~0u, x, half);
  return x;
}

// 1 / sqrt(sum / n + eps).
INLINE float inverse_rms(float sum, int n, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(n)) + eps));
}

constexpr int kKvBlock = 32;  // positions in a block of the cache
constexpr int kKBlock = 256;  // products that are summed before the sum joins a total
constexpr int kPanel = 32;    // outputs in a panel of weights

}  // namespace batchgen::ISA
