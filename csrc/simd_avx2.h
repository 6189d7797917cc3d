// 16 lanes in two 256-bit registers.
#pragma once

#include <immintrin.h>

#include "simd_x86.h"

namespace batchgen::ISA {

struct vf { __m256 a, b; };
struct vu { __m256i a, b; };
struct vm { __m256i a, b; };  // all ones or all zeros in each lane

#define BOTH(f, ...) {f(x.a __VA_OPT__(, ) __VA_ARGS__), f(x.b __VA_OPT__(, ) __VA_ARGS__)}
#define PAIR(f) {f(x.a, y.a), f(x.b, y.b)}

INLINE vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE vu load(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
INLINE void store(float* p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE void store(uint32_t* p, vu x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
INLINE vf set1(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
INLINE vu set1(uint32_t x) { const __m256i v = _mm256_set1_epi32(static_cast<int>(x)); return {v, v}; }
INLINE vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

INLINE vf operator+(vf x, vf y) { return PAIR(_mm256_add_ps); }
INLINE vf operator-(vf x, vf y) { return PAIR(_mm256_sub_ps); }
INLINE vf operator*(vf x, vf y) { return PAIR(_mm256_mul_ps); }
INLINE vf operator/(vf x, vf y) { return PAIR(_mm256_div_ps); }
INLINE vf fma(vf x, vf y, vf z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// x * y + z, written into z's registers; see simd_avx512.h.
INLINE vf accumulate(vf z, vf x, vf y) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(z.a) : "x"(x.a), "x"(y.a));
  asm("vfmadd231ps %2, %1, %0" : "+x"(z.b) : "x"(x.b), "x"(y.b));
  return z;
}
INLINE vf max(vf x, vf y) { return PAIR(_mm256_max_ps); }
INLINE vf min(vf x, vf y) { return PAIR(_mm256_min_ps); }
INLINE vf round(vf x) { return BOTH(_mm256_round_ps, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

INLINE vu operator+(vu x, vu y) { return PAIR(_mm256_add_epi32); }
INLINE vu operator-(vu x, vu y) { return PAIR(_mm256_sub_epi32); }
INLINE vu operator&(vu x, vu y) { return PAIR(_mm256_and_si256); }
INLINE vu operator|(vu x, vu y) { return PAIR(_mm256_or_si256); }
INLINE vu operator^(vu x, vu y) { return PAIR(_mm256_xor_si256); }
INLINE __m256i mul_wide8(__m256i x, __m256i y, __m256i& high) {
  const __m256i even = _mm256_mul_epu32(x, y);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
INLINE vu mul_wide(vu x, vu y, vu& high) {
  const __m256i low_a = mul_wide8(x.a, y.a, high.a);
  return {low_a, mul_wide8(x.b, y.b, high.b)};
}
template <int N> INLINE vu shl(vu x) { return BOTH(_mm256_slli_epi32, N); }
template <int N> INLINE vu shr(vu x) { return BOTH(_mm256_srli_epi32, N); }

INLINE void transpose8(__m256i& x0, __m256i& x1, __m256i& x2, __m256i& x3) {
  const __m256i a = _mm256_unpacklo_epi32(x0, x1), b = _mm256_unpackhi_epi32(x0, x1);
  const __m256i c = _mm256_unpacklo_epi32(x2, x3), d = _mm256_unpackhi_epi32(x2, x3);
  x0 = _mm256_unpacklo_epi64(a, c), x1 = _mm256_unpackhi_epi64(a, c);
  x2 = _mm256_unpacklo_epi64(b, d), x3 = _mm256_unpackhi_epi64(b, d);
}
INLINE void transpose4(vu (&x)[4]) {
  transpose8(x[0].a, x[1].a, x[2].a, x[3].a);
  transpose8(x[0].b, x[1].b, x[2].b, x[3].b);
}

INLINE vf as_float(vu x) { return BOTH(_mm256_castsi256_ps); }
INLINE vu as_uint(vf x) { return BOTH(_mm256_castps_si256); }
INLINE vu to_int(vf x) { return BOTH(_mm256_cvtps_epi32); }
INLINE vf from_int(vu x) { return BOTH(_mm256_cvtepi32_ps); }

INLINE __m256i lt8(__m256 x, __m256 y) { return _mm256_castps_si256(_mm256_cmp_ps(x, y, _CMP_LT_OQ)); }
INLINE __m256i le8(__m256 x, __m256 y) { return _mm256_castps_si256(_mm256_cmp_ps(x, y, _CMP_LE_OQ)); }
INLINE __m256i eq8(__m256 x, __m256 y) { return _mm256_castps_si256(_mm256_cmp_ps(x, y, _CMP_EQ_OQ)); }
INLINE __m256i ltu8(__m256i x, __m256i y) {  // unsigned order through a flipped sign bit
  const __m256i flip = _mm256_set1_epi32(INT32_MIN);
  return _mm256_cmpgt_epi32(_mm256_xor_si256(y, flip), _mm256_xor_si256(x, flip));
}
INLINE vm lt(vf x, vf y) { return PAIR(lt8); }
INLINE vm le(vf x, vf y) { return PAIR(le8); }
INLINE vm eq(vf x, vf y) { return PAIR(eq8); }
INLINE vm lt(vu x, vu y) { return PAIR(ltu8); }
INLINE vm eq(vu x, vu y) { return PAIR(_mm256_cmpeq_epi32); }
INLINE vf select(vm m, vf yes, vf no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(m.a)), _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(m.b))};
}
INLINE vu select(vm m, vu yes, vu no) {
  return {_mm256_blendv_epi8(no.a, yes.a, m.a), _mm256_blendv_epi8(no.b, yes.b, m.b)};
}
INLINE uint32_t bits(vm m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m.a))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m.b))) << 8;
}
INLINE vm first(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane)};
}

INLINE float tree_sum(vf x) { return tree_sum8(_mm256_add_ps(x.a, x.b)); }
INLINE float lane_max(vf x) { return lane_max8(_mm256_max_ps(x.a, x.b)); }

INLINE vf load_bf16(const uint16_t* p) {
  const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
}
INLINE void store_low16(uint16_t* p, vu x) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#undef BOTH
#undef PAIR

}  // namespace batchgen::ISA
