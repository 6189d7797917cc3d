#pragma once

#include "buffer.h"
#include "elementary.h"
#include "groups.h"
#include "kernels.h"
#include "pool.h"
#include "simd.h"

namespace batchgen::ISA {

// The register tile: kRows rows of x times kVectors vectors of 16 weights. It fills the register file
// of each set and cannot be seen in the bits: an output's sum has one accumulator and k ascends.
// kWidens: whether weights that several tiles use become float32 first. With few rows in a tile the conversion in
// the inner loop costs more than the room in the first-level cache.
#if ISA_ID == ISA_avx512
constexpr int kRows = 13, kVectors = 2;
constexpr bool kWidens = false;
#elif ISA_ID == ISA_avx2
constexpr int kRows = 6, kVectors = 1;
constexpr bool kWidens = true;
#elif ISA_ID == ISA_neon
constexpr int kRows = 6, kVectors = 1;
constexpr bool kWidens = true;
#else
constexpr int kRows = 4, kVectors = 1;
constexpr bool kWidens = true;
#endif

// acc[m][v] = sum over k < count of x[m * kRow + k * kStep] * w[k/2][v*16 + lane][k%2], from +0, k ascending, by FMA.
// A row of pairs in w is `ldw` pairs long. An odd count leaves out the last high half. `ahead` is memory that will be
// wanted soon: one cache line of it is fetched with each pair of k.
template <int kRow, int kStep, int R, int V>
INLINE void multiply(const float* x, const uint32_t* w, int64_t ldw, int count, vf (&acc)[R][V], const void* ahead = nullptr) {
  const char* line = static_cast<const char*>(ahead);
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[m][v] = zero();
  for (int k = 0; k + 1 < count; k += 2, x += 2 * kStep, w += ldw) {
    vf even[V], odd[V];
    if (line) __builtin_prefetch(line + k * 32, 0, 2);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) even[v] = low_bf16(load(w + 16 * v));
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const vf a = set1(x[m * kRow]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = accumulate(acc[m][v], a, even[v]);
    }
    asm volatile("" ::: "memory");  // load the pairs again: kept, they would push an accumulator out of its register
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) odd[v] = high_bf16(load(w + 16 * v));
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const vf a = set1(x[m * kRow + kStep]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = accumulate(acc[m][v], a, odd[v]);
    }
  }
  if (count % 2) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const vf even = low_bf16(load(w + 16 * v));
#pragma GCC unroll 16
      for (int m = 0; m < R; ++m) acc[m][v] = accumulate(acc[m][v], set1(x[m * kRow]), even);
    }
  }
}

// The same sums from weights that are float32 already: w[k * kPanel + v*16 + lane], and x packed [count, R].
template <int R, int V>
INLINE void multiply_wide(const float* x, const float* w, int count, vf (&acc)[R][V], const void* ahead) {
  const char* line = static_cast<const char*>(ahead);
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[m][v] = zero();
  for (int k = 0; k < count; ++k, x += R, w += kPanel) {
    vf b[V];
    if (line) __builtin_prefetch(line + k * 32, 0, 2);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) b[v] = load(w + 16 * v);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const vf a = set1(x[m]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = accumulate(acc[m][v], a, b[v]);
    }
  }
}

// `count` (even) rows of a panel from bf16 pairs to float32.
INLINE void widen(const uint32_t* w, int count, float* wide) {
  for (int k = 0; k < count; k += 2, w += kPanel, wide += 2 * kPanel)
#pragma GCC unroll 2
    for (int v = 0; v < kPanel; v += 16) {
      const vu pair = load(w + v);
      store(wide + v, low_bf16(pair));
      store(wide + kPanel + v, high_bf16(pair));
    }
}

// Calls f.template operator()<R>() with R = rows, 1 <= rows <= kRows.
template <int R = kRows, class F>
INLINE void with_rows(int64_t rows, F&& f) {
  if (rows == R) f.template operator()<R>();
  else if constexpr (R > 1) with_rows<R - 1>(rows, f);
}

// Rows of x to float32, k-major: panel[k * rows + m] is input k of row_of(m), m < rows.
template <class RowOf>
INLINE void pack_rows(RowOf&& row_of, int64_t K, int64_t rows, float* panel) {
  alignas(64) float block[kRows][16];
  int64_t k = 0;
  for (; k + 16 <= K; k += 16) {
    for (int64_t m = 0; m < rows; ++m) store(block[m], load_bf16(row_of(m) + k));
    for (int i = 0; i < 16; ++i)
      for (int64_t m = 0; m < rows; ++m) panel[(k + i) * rows + m] = block[m][i];
  }
  for (; k < K; ++k)
    for (int64_t m = 0; m < rows; ++m) {
      const uint32_t bits = uint32_t{row_of(m)[k]} << 16;
      std::memcpy(&panel[k * rows + m], &bits, 4);
    }
}

// One tile of one panel of one K-block: the block's sums join the running totals [R, 32]. `wide` holds the weights as
// float32, or is null. `ahead`: see multiply.
template <int R>
INLINE void linear_tile(const float* x, const uint32_t* w, const float* wide, int count, bool is_first, float* totals, const uint32_t* ahead) {
  for (int part = 0; part < 2 / kVectors; ++part) {
    vf acc[R][kVectors];
    if (wide) multiply_wide(x, wide + part * 16, count, acc, ahead);
    else multiply<1, R>(x, w + part * 16, kPanel, count, acc, ahead);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        float* total = totals + m * kPanel + (part + v) * 16;
        store(total, is_first ? acc[m][v] : load(total) + acc[m][v]);
      }
  }
}

// y[m0 .. m0 + rows, n0 .. n0 + 32) from the totals; the columns past N are padding and stay unwritten.
INLINE void finish_panel(const Linear& a, const float* totals, int64_t m0, int64_t rows, int64_t n0) {
  for (int64_t n = n0; n < n0 + kPanel && n < a.N; n += 16) {
    const int64_t width = a.N - n < 16 ? a.N - n : 16;
    alignas(64) float edge[16] = {};
    const auto read = [&](const float* p) {
      if (width == 16) return load(p);
      std::memcpy(edge, p, width * 4);
      return load(edge);
    };
    for (int64_t m = m0; m < m0 + rows; ++m) {
      vf y = load(totals + (m - m0) * kPanel + n - n0);
      if (a.bias) y = y + read(a.bias + n);
      if (a.residual) y = read(a.residual + m * a.N + n) + y;
      if (width == 16) {
        store(a.y + m * a.N + n, y);
      } else {
        store(edge, y);
        std::memcpy(a.y + m * a.N + n, edge, width * 4);
      }
    }
  }
}

// totals [rows, 32] = x W^T for the rows of `tiles` and one panel of weights. `wide` [256, 32] is scratch.
INLINE void sum_panel(const uint32_t* w, int64_t K, const Cuts& tiles, const float* packed, float* wide, float* totals) {
  const int64_t panel = K / 2 * kPanel;
  const bool widens = kWidens && tiles.count > 1;
  for (int64_t k0 = 0; k0 < K; k0 += kKBlock) {
    const int count = static_cast<int>(K - k0 < kKBlock ? K - k0 : kKBlock);
    const uint32_t* here = w + k0 / 2 * kPanel;
    if (widens) widen(here, count, wide);
    for (int64_t t = 0; t < tiles.count; ++t)
      with_rows(tiles.size(t), [&]<int R>() {
        const int64_t m = tiles.begin(t);
        // The same block of the next panel; the first two tiles fetch a half each.
        const uint32_t* ahead = t < 2 ? here + panel + t * count / 4 * kPanel : nullptr;
        linear_tile<R>(packed + m * K + k0 * R, here, widens ? wide : nullptr, count, k0 == 0,
                       totals + (m - tiles.start) * kPanel, ahead);
      });
  }
}

// Rows whose float32 copy stays in the second-level cache while the weights stream past.
constexpr int64_t kBlockRows = 144;

// Packs x [M, K], then calls f(tiles, packed, p, scratch) for each block of rows and each panel p < panels.
// `scratch` has room for sum_panel's `wide` and, behind it, two `totals`.
template <class F>
INLINE void for_panels(const uint16_t* x, int64_t M, int64_t K, int64_t panels, F&& f) {
  if (M == 0) return;
  static thread_local Buffer buffer;
  float* packed = buffer.floats(M * K);
  const Cuts blocks(0, M, kBlockRows);
  const auto tiles_of = [&](int64_t b) { return Cuts(blocks.begin(b), blocks.size(b), kRows); };
  const int64_t most_tiles = ((M + blocks.count - 1) / blocks.count + kRows - 1) / kRows;
  parallel_for(blocks.count * most_tiles, [&](int64_t i) {
    const Cuts tiles = tiles_of(i / most_tiles);
    const int64_t t = i % most_tiles;
    const int64_t begin = t < tiles.count ? tiles.begin(t) : 0;
    if (t < tiles.count) pack_rows([&](int64_t m) { return x + (begin + m) * K; }, K, tiles.size(t), packed + begin * K);
  });
  // A task is a few neighbouring panels, so that the weights it will want next are known and can be fetched ahead.
  const int64_t fair = panels / (8 * threads());
  const Cuts runs(0, panels, fair < 1 ? 1 : fair > 4 ? 4 : fair);
  parallel_for(blocks.count * runs.count, [&](int64_t i) {
    static thread_local Buffer scratch;
    const Cuts tiles = tiles_of(i / runs.count);
    float* room = scratch.floats((kKBlock + 2 * tiles.total) * kPanel);
    for (int64_t p = runs.begin(i % runs.count); p < runs.begin(i % runs.count + 1); ++p) f(tiles, packed, p, room);
  });
}

INLINE const uint32_t* panel_of(const uint16_t* w, int64_t K, int64_t p) {
  return reinterpret_cast<const uint32_t*>(w) + p * (K / 2) * kPanel;
}

inline void linear(const Linear& a) {
  for_panels(a.x, a.M, a.K, (a.N + kPanel - 1) / kPanel, [&](const Cuts& tiles, const float* packed, int64_t p, float* scratch) {
    float* totals = scratch + kKBlock * kPanel;
    sum_panel(panel_of(a.w, a.K, p), a.K, tiles, packed, scratch, totals);
    finish_panel(a, totals, tiles.start, tiles.total, p * kPanel);
  });
}

// A linear and silu_mul in one: the sums of a gate and of its up meet while they are in the cache.
inline void linear_silu_mul(const LinearSiluMul& a) {
  const int64_t panels = a.I / kPanel;
  for_panels(a.x, a.M, a.K, panels, [&](const Cuts& tiles, const float* packed, int64_t p, float* scratch) {
    float *gate = scratch + kKBlock * kPanel, *up = gate + tiles.total * kPanel;
    sum_panel(panel_of(a.w, a.K, p), a.K, tiles, packed, scratch, gate);
    sum_panel(panel_of(a.w, a.K, panels + p), a.K, tiles, packed, scratch, up);
    for (int64_t m = 0; m < tiles.total; ++m)
      for (int64_t i = 0; i < kPanel; i += 16)
        store_bf16(a.out + (tiles.start + m) * a.I + p * kPanel + i, silu_mul(load(gate + m * kPanel + i), load(up + m * kPanel + i)));
  });
}

}  // namespace batchgen::ISA
