// 16 lanes in four 128-bit registers.
#pragma once

#include <arm_neon.h>

namespace batchgen::ISA {

struct vf { float32x4_t a[4]; };
struct vu { uint32x4_t a[4]; };
struct vm { uint32x4_t a[4]; };  // all ones or all zeros in each lane

#define QUAD(T, expr) T r; _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) r.a[i] = (expr); return r

INLINE vf load(const float* p) { QUAD(vf, vld1q_f32(p + 4 * i)); }
INLINE vu load(const uint32_t* p) { QUAD(vu, vld1q_u32(p + 4 * i)); }
INLINE void store(float* p, vf x) { for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.a[i]); }
INLINE void store(uint32_t* p, vu x) { for (int i = 0; i < 4; ++i) vst1q_u32(p + 4 * i, x.a[i]); }
INLINE vf set1(float x) { QUAD(vf, vdupq_n_f32(x)); }
INLINE vu set1(uint32_t x) { QUAD(vu, vdupq_n_u32(x)); }
INLINE vf zero() { return set1(0.0f); }

INLINE vf operator+(vf x, vf y) { QUAD(vf, vaddq_f32(x.a[i], y.a[i])); }
INLINE vf operator-(vf x, vf y) { QUAD(vf, vsubq_f32(x.a[i], y.a[i])); }
INLINE vf operator*(vf x, vf y) { QUAD(vf, vmulq_f32(x.a[i], y.a[i])); }
INLINE vf operator/(vf x, vf y) { QUAD(vf, vdivq_f32(x.a[i], y.a[i])); }
INLINE vf fma(vf x, vf y, vf z) { QUAD(vf, vfmaq_f32(z.a[i], x.a[i], y.a[i])); }
INLINE vf accumulate(vf z, vf x, vf y) { return fma(x, y, z); }
INLINE vf max(vf x, vf y) { QUAD(vf, vbslq_f32(vcgtq_f32(x.a[i], y.a[i]), x.a[i], y.a[i])); }
INLINE vf min(vf x, vf y) { QUAD(vf, vbslq_f32(vcltq_f32(x.a[i], y.a[i]), x.a[i], y.a[i])); }
INLINE vf round(vf x) { QUAD(vf, vrndnq_f32(x.a[i])); }

INLINE vu operator+(vu x, vu y) { QUAD(vu, vaddq_u32(x.a[i], y.a[i])); }
INLINE vu operator-(vu x, vu y) { QUAD(vu, vsubq_u32(x.a[i], y.a[i])); }
INLINE vu operator&(vu x, vu y) { QUAD(vu, vandq_u32(x.a[i], y.a[i])); }
INLINE vu operator|(vu x, vu y) { QUAD(vu, vorrq_u32(x.a[i], y.a[i])); }
INLINE vu operator^(vu x, vu y) { QUAD(vu, veorq_u32(x.a[i], y.a[i])); }
INLINE vu mul_wide(vu x, vu y, vu& high) {
  for (int i = 0; i < 4; ++i)
    high.a[i] = vuzp2q_u32(vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x.a[i]), vget_low_u32(y.a[i]))),
                           vreinterpretq_u32_u64(vmull_high_u32(x.a[i], y.a[i])));
  QUAD(vu, vmulq_u32(x.a[i], y.a[i]));
}
template <int N> INLINE vu shl(vu x) { QUAD(vu, vshlq_n_u32(x.a[i], N)); }
template <int N> INLINE vu shr(vu x) { QUAD(vu, vshrq_n_u32(x.a[i], N)); }

INLINE void transpose4(vu (&x)[4]) {
  for (int i = 0; i < 4; ++i) {
    const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(x[0].a[i], x[1].a[i])), b = vreinterpretq_u64_u32(vzip2q_u32(x[0].a[i], x[1].a[i]));
    const uint64x2_t c = vreinterpretq_u64_u32(vzip1q_u32(x[2].a[i], x[3].a[i])), d = vreinterpretq_u64_u32(vzip2q_u32(x[2].a[i], x[3].a[i]));
    x[0].a[i] = vreinterpretq_u32_u64(vzip1q_u64(a, c)), x[1].a[i] = vreinterpretq_u32_u64(vzip2q_u64(a, c));
    x[2].a[i] = vreinterpretq_u32_u64(vzip1q_u64(b, d)), x[3].a[i] = vreinterpretq_u32_u64(vzip2q_u64(b, d));
  }
}

INLINE vf as_float(vu x) { QUAD(vf, vreinterpretq_f32_u32(x.a[i])); }
INLINE vu as_uint(vf x) { QUAD(vu, vreinterpretq_u32_f32(x.a[i])); }
INLINE vu to_int(vf x) { QUAD(vu, vreinterpretq_u32_s32(vcvtnq_s32_f32(x.a[i]))); }
INLINE vf from_int(vu x) { QUAD(vf, vcvtq_f32_s32(vreinterpretq_s32_u32(x.a[i]))); }

INLINE vm lt(vf x, vf y) { QUAD(vm, vcltq_f32(x.a[i], y.a[i])); }
INLINE vm le(vf x, vf y) { QUAD(vm, vcleq_f32(x.a[i], y.a[i])); }
INLINE vm eq(vf x, vf y) { QUAD(vm, vceqq_f32(x.a[i], y.a[i])); }
INLINE vm lt(vu x, vu y) { QUAD(vm, vcltq_u32(x.a[i], y.a[i])); }
INLINE vm eq(vu x, vu y) { QUAD(vm, vceqq_u32(x.a[i], y.a[i])); }
INLINE vf select(vm m, vf yes, vf no) { QUAD(vf, vbslq_f32(m.a[i], yes.a[i], no.a[i])); }
INLINE vu select(vm m, vu yes, vu no) { QUAD(vu, vbslq_u32(m.a[i], yes.a[i], no.a[i])); }
INLINE uint32_t bits(vm m) {
  const uint32x4_t weight = {1, 2, 4, 8};
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= vaddvq_u32(vandq_u32(m.a[i], weight)) << (4 * i);
  return r;
}
INLINE vm first(int n) {
  const int32x4_t lane = {0, 1, 2, 3};
  QUAD(vm, vcltq_s32(lane, vdupq_n_s32(n - 4 * i)));
}

INLINE float tree_sum(vf x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a[0], x.a[2]), vaddq_f32(x.a[1], x.a[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
INLINE float lane_max(vf x) {
  float a[16];
  store(a, x);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
  return a[0];
}

INLINE vf load_bf16(const uint16_t* p) { QUAD(vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16))); }
INLINE void store_low16(uint16_t* p, vu x) { for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vmovn_u32(x.a[i])); }

#undef QUAD

}  // namespace batchgen::ISA
