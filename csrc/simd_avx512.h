// 16 lanes in one 512-bit register.
#pragma once

#include <immintrin.h>

#include "simd_x86.h"

namespace batchgen::ISA {

struct vf { __m512 a; };
struct vu { __m512i a; };
struct vm { __mmask16 a; };

INLINE vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE vu load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE void store(float* p, vf x) { _mm512_storeu_ps(p, x.a); }
INLINE void store(uint32_t* p, vu x) { _mm512_storeu_si512(p, x.a); }
INLINE vf set1(float x) { return {_mm512_set1_ps(x)}; }
INLINE vu set1(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
INLINE vf zero() { return {_mm512_setzero_ps()}; }

INLINE vf operator+(vf x, vf y) { return {_mm512_add_ps(x.a, y.a)}; }
INLINE vf operator-(vf x, vf y) { return {_mm512_sub_ps(x.a, y.a)}; }
INLINE vf operator*(vf x, vf y) { return {_mm512_mul_ps(x.a, y.a)}; }
INLINE vf operator/(vf x, vf y) { return {_mm512_div_ps(x.a, y.a)}; }
INLINE vf fma(vf x, vf y, vf z) { return {_mm512_fmadd_ps(x.a, y.a, z.a)}; }
// x * y + z, written into z's register. As text, because GCC otherwise picks forms that move accumulators between
// registers, a tenth of the linear's time.
INLINE vf accumulate(vf z, vf x, vf y) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(z.a) : "v"(x.a), "v"(y.a));
  return z;
}
INLINE vf max(vf x, vf y) { return {_mm512_max_ps(x.a, y.a)}; }
INLINE vf min(vf x, vf y) { return {_mm512_min_ps(x.a, y.a)}; }
INLINE vf round(vf x) { return {_mm512_roundscale_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

INLINE vu operator+(vu x, vu y) { return {_mm512_add_epi32(x.a, y.a)}; }
INLINE vu operator-(vu x, vu y) { return {_mm512_sub_epi32(x.a, y.a)}; }
INLINE vu operator&(vu x, vu y) { return {_mm512_and_si512(x.a, y.a)}; }
INLINE vu operator|(vu x, vu y) { return {_mm512_or_si512(x.a, y.a)}; }
INLINE vu operator^(vu x, vu y) { return {_mm512_xor_si512(x.a, y.a)}; }
INLINE vu mul_wide(vu x, vu y, vu& high) {
  const __m512i even = _mm512_mul_epu32(x.a, y.a);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x.a, 32), _mm512_srli_epi64(y.a, 32));
  high.a = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  return {_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32))};
}
template <int N> INLINE vu shl(vu x) { return {_mm512_slli_epi32(x.a, N)}; }
template <int N> INLINE vu shr(vu x) { return {_mm512_srli_epi32(x.a, N)}; }

INLINE void transpose4(vu (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0].a, x[1].a), b = _mm512_unpackhi_epi32(x[0].a, x[1].a);
  const __m512i c = _mm512_unpacklo_epi32(x[2].a, x[3].a), d = _mm512_unpackhi_epi32(x[2].a, x[3].a);
  x[0].a = _mm512_unpacklo_epi64(a, c), x[1].a = _mm512_unpackhi_epi64(a, c);
  x[2].a = _mm512_unpacklo_epi64(b, d), x[3].a = _mm512_unpackhi_epi64(b, d);
}

INLINE vf as_float(vu x) { return {_mm512_castsi512_ps(x.a)}; }
INLINE vu as_uint(vf x) { return {_mm512_castps_si512(x.a)}; }
INLINE vu to_int(vf x) { return {_mm512_cvtps_epi32(x.a)}; }
INLINE vf from_int(vu x) { return {_mm512_cvtepi32_ps(x.a)}; }

INLINE vm lt(vf x, vf y) { return {_mm512_cmp_ps_mask(x.a, y.a, _CMP_LT_OQ)}; }
INLINE vm le(vf x, vf y) { return {_mm512_cmp_ps_mask(x.a, y.a, _CMP_LE_OQ)}; }
INLINE vm eq(vf x, vf y) { return {_mm512_cmp_ps_mask(x.a, y.a, _CMP_EQ_OQ)}; }
INLINE vm lt(vu x, vu y) { return {_mm512_cmplt_epu32_mask(x.a, y.a)}; }
INLINE vm eq(vu x, vu y) { return {_mm512_cmpeq_epi32_mask(x.a, y.a)}; }
INLINE vf select(vm m, vf yes, vf no) { return {_mm512_mask_blend_ps(m.a, no.a, yes.a)}; }
INLINE vu select(vm m, vu yes, vu no) { return {_mm512_mask_blend_epi32(m.a, no.a, yes.a)}; }
INLINE uint32_t bits(vm m) { return m.a; }
INLINE vm first(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }

INLINE float tree_sum(vf x) { return tree_sum8(_mm256_add_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1))); }
INLINE float lane_max(vf x) { return lane_max8(_mm256_max_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1))); }

INLINE vf load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
INLINE void store_low16(uint16_t* p, vu x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.a));
}

}  // namespace batchgen::ISA
