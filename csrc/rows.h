// Ops whose output row depends on one input row: embedding, norm, rotary.
#pragma once

#include "elementary.h"
#include "kernels.h"
#include "pool.h"
#include "simd.h"

namespace batchgen::ISA {

// f(begin, end) over [0, rows) in runs that are worth waking a thread for.
template <class F>
INLINE void for_rows(int64_t rows, int64_t cost, F&& f) {
  const int64_t run = cost >= 16384 ? 1 : 16384 / cost;
  parallel_for((rows + run - 1) / run, [&](int64_t i) {
    const int64_t end = (i + 1) * run;
    f(i * run, end < rows ? end : rows);
  });
}

INLINE void embed(const Embed& a) {
  for_rows(a.T, a.H * 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t id = a.ids[t];
      const uint16_t* row = a.table + id / kPanel * kPanel * a.H + id % kPanel * 2;
      for (int64_t k = 0; k < a.H; ++k) {
        const uint32_t bits = uint32_t{row[k / 2 * kPanel * 2 + k % 2]} << 16;
        std::memcpy(&a.out[t * a.H + k], &bits, 4);
      }
    }
  });
}

// 1 / sqrt(mean(x^2) + eps): lane l sums x[l], x[l+16], … by FMA from +0, then the tree. n is a multiple of 16.
INLINE float inverse_rms(const float* x, int64_t n, float eps) {
  vf sum = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const vf v = load(x + i);
    sum = fma(v, v, sum);
  }
  const float mean = tree_sum(sum) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + eps);
}

INLINE void rms_norm(const RmsNorm& a) {
  for_rows(a.T, a.H, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x + t * a.H;
      const vf scale = set1(inverse_rms(x, a.H, a.eps));
      for (int64_t i = 0; i < a.H; i += 16) store_bf16(a.out + t * a.H + i, load(x + i) * scale * load(a.w + i));
    }
  });
}

// One head of D values: norm (when w), then the rotation of (x[i], x[i + D/2]) by the token's angle, to bf16.
INLINE void turn_head(const float* x, const float* w, const float* cos, const float* sin, float eps, int64_t D, uint16_t* out) {
  const int64_t half = D / 2;
  const vf scale = w ? set1(inverse_rms(x, D, eps)) : zero();
  for (int64_t i = 0; i < half; i += 16) {
    vf a = load(x + i), b = load(x + half + i);
    if (w) a = a * scale * load(w + i), b = b * scale * load(w + half + i);
    const vf c = load(cos + i), s = load(sin + i);
    store_bf16(out + i, fma(a, c, zero() - b * s));
    store_bf16(out + half + i, fma(b, c, a * s));
  }
}

INLINE void rotary_store(const RotaryStore& a) {
  const int64_t D = a.D, half = D / 2;
  for_rows(a.T, (a.Hq + 2 * a.Hk) * D * 2, [&](int64_t begin, int64_t end) {
    alignas(64) uint16_t head[kMaxHead];
    for (int64_t t = begin; t < end; ++t) {
      const float* qkv = a.qkv + t * (a.Hq + 2 * a.Hk) * D;
      const float *cos = a.cos + a.positions[t] * half, *sin = a.sin + a.positions[t] * half;
      const int64_t block = a.slots[t] / kKvBlock, at = a.slots[t] % kKvBlock;
      for (int64_t h = 0; h < a.Hq; ++h)
        turn_head(qkv + h * D, a.q_norm, cos, sin, a.eps, D, a.q + (t * a.Hq + h) * D);
      for (int64_t h = 0; h < a.Hk; ++h) {
        turn_head(qkv + (a.Hq + h) * D, a.k_norm, cos, sin, a.eps, D, head);
        uint16_t* k = a.k_cache + (block * a.Hk + h) * D * kKvBlock + at * 2;
        for (int64_t d = 0; d < D; ++d) k[d / 2 * kKvBlock * 2 + d % 2] = head[d];
        for (int64_t d = 0; d < D; d += 16) store_bf16(head + d, load(qkv + (a.Hq + a.Hk + h) * D + d));
        uint16_t* v = a.v_cache + (block * a.Hk + h) * D * kKvBlock + at / 2 * D * 2 + at % 2;
        for (int64_t d = 0; d < D; ++d) v[d * 2] = head[d];
      }
    }
  });
}

}  // namespace batchgen::ISA
