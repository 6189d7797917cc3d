// 16 lanes in an array: the twin that defines what the others must equal.
#pragma once

namespace batchgen::ISA {

struct vf { float a[16]; };
struct vu { uint32_t a[16]; };
struct vm { bool a[16]; };

#define LANES(T, expr) T r; for (int i = 0; i < 16; ++i) r.a[i] = (expr); return r

INLINE vf load(const float* p) { LANES(vf, p[i]); }
INLINE vu load(const uint32_t* p) { LANES(vu, p[i]); }
INLINE void store(float* p, vf x) { std::memcpy(p, x.a, 64); }
INLINE void store(uint32_t* p, vu x) { std::memcpy(p, x.a, 64); }
INLINE vf set1(float x) { LANES(vf, x); }
INLINE vu set1(uint32_t x) { LANES(vu, x); }
INLINE vf zero() { return set1(0.0f); }

INLINE vf operator+(vf x, vf y) { LANES(vf, x.a[i] + y.a[i]); }
INLINE vf operator-(vf x, vf y) { LANES(vf, x.a[i] - y.a[i]); }
INLINE vf operator*(vf x, vf y) { LANES(vf, x.a[i] * y.a[i]); }
INLINE vf operator/(vf x, vf y) { LANES(vf, x.a[i] / y.a[i]); }
INLINE vf fma(vf x, vf y, vf z) { LANES(vf, std::fmaf(x.a[i], y.a[i], z.a[i])); }
INLINE vf accumulate(vf z, vf x, vf y) { return fma(x, y, z); }
INLINE vf max(vf x, vf y) { LANES(vf, x.a[i] > y.a[i] ? x.a[i] : y.a[i]); }
INLINE vf min(vf x, vf y) { LANES(vf, x.a[i] < y.a[i] ? x.a[i] : y.a[i]); }
INLINE vf round(vf x) { LANES(vf, std::nearbyint(x.a[i])); }

INLINE vu operator+(vu x, vu y) { LANES(vu, x.a[i] + y.a[i]); }
INLINE vu operator-(vu x, vu y) { LANES(vu, x.a[i] - y.a[i]); }
INLINE vu operator&(vu x, vu y) { LANES(vu, x.a[i] & y.a[i]); }
INLINE vu operator|(vu x, vu y) { LANES(vu, x.a[i] | y.a[i]); }
INLINE vu operator^(vu x, vu y) { LANES(vu, x.a[i] ^ y.a[i]); }
INLINE vu mul_wide(vu x, vu y, vu& high) {
  for (int i = 0; i < 16; ++i) high.a[i] = static_cast<uint32_t>((uint64_t{x.a[i]} * y.a[i]) >> 32);
  LANES(vu, x.a[i] * y.a[i]);
}
template <int N> INLINE vu shl(vu x) { LANES(vu, x.a[i] << N); }
template <int N> INLINE vu shr(vu x) { LANES(vu, x.a[i] >> N); }

INLINE void transpose4(vu (&x)[4]) {  // lane 4m + w of x[k] becomes lane 4m + k of x[w]
  vu y[4];
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 16; ++i) y[k].a[i] = x[i % 4].a[i / 4 * 4 + k];
  std::memcpy(x, y, sizeof y);
}

INLINE vf as_float(vu x) { vf r; std::memcpy(r.a, x.a, 64); return r; }
INLINE vu as_uint(vf x) { vu r; std::memcpy(r.a, x.a, 64); return r; }
INLINE vu to_int(vf x) { LANES(vu, static_cast<uint32_t>(static_cast<int32_t>(std::nearbyint(x.a[i])))); }
INLINE vf from_int(vu x) { LANES(vf, static_cast<float>(static_cast<int32_t>(x.a[i]))); }

INLINE vm lt(vf x, vf y) { LANES(vm, x.a[i] < y.a[i]); }
INLINE vm le(vf x, vf y) { LANES(vm, x.a[i] <= y.a[i]); }
INLINE vm eq(vf x, vf y) { LANES(vm, x.a[i] == y.a[i]); }
INLINE vm lt(vu x, vu y) { LANES(vm, x.a[i] < y.a[i]); }
INLINE vm eq(vu x, vu y) { LANES(vm, x.a[i] == y.a[i]); }
INLINE vf select(vm m, vf yes, vf no) { LANES(vf, m.a[i] ? yes.a[i] : no.a[i]); }
INLINE vu select(vm m, vu yes, vu no) { LANES(vu, m.a[i] ? yes.a[i] : no.a[i]); }
INLINE uint32_t bits(vm m) { uint32_t r = 0; for (int i = 0; i < 16; ++i) r |= uint32_t{m.a[i]} << i; return r; }
INLINE vm first(int n) { LANES(vm, i < n); }

INLINE float tree_sum(vf x) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) x.a[i] = x.a[i] + x.a[i + half];
  return x.a[0];
}
INLINE float lane_max(vf x) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) x.a[i] = x.a[i] > x.a[i + half] ? x.a[i] : x.a[i + half];
  return x.a[0];
}

INLINE vf load_bf16(const uint16_t* p) { vu r; for (int i = 0; i < 16; ++i) r.a[i] = uint32_t{p[i]} << 16; return as_float(r); }
INLINE void store_low16(uint16_t* p, vu x) { for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(x.a[i]); }

#undef LANES

}  // namespace batchgen::ISA
