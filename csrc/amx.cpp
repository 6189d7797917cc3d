// Linears of profile native-amx/1: bfloat16 tiles multiplied by the processor's own matrix unit (AMX).
//
// For each output TDPBF16PS adds the products of 32 inputs at a time, blocks of 32 ascending, in the order and with
// the rounding that the instruction has; it flushes subnormals. A row of a tile never meets another row, so rows do
// not depend on M. Everything but the linears is portable/1.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cpuid.h>

#include "buffer.h"
#include "elementary.h"
#include "groups.h"
#include "kernels.h"
#include "pool.h"

namespace batchgen {
namespace ISA {

constexpr int kTileRows = 16, kTileK = 32;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

// The tiles of this thread, for the length of a scope: 0..3 sums, 4..5 rows of x, 6..7 weights, each 16 x 64 bytes.
class Tiles {
 public:
  Tiles() {
    TileConfig config;
    for (int i = 0; i < 8; ++i) config.bytes_per_row[i] = 64, config.rows[i] = kTileRows;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

// x [M, K] as bands of 32 rows. The last band is a copy with zero rows behind it where x ends early.
struct Bands {
  const uint16_t* x;
  const uint16_t* tail;
  int64_t M, K, count;

  Bands(const uint16_t* rows, int64_t m, int64_t k, Buffer& buffer) : x(rows), tail(nullptr), M(m), K(k), count((m + 31) / 32) {
    const int64_t left = M % 32;
    if (!left) return;
    auto* copy = reinterpret_cast<uint16_t*>(buffer.floats(16 * K));
    std::memcpy(copy, x + (M - left) * K, left * K * 2);
    std::memset(copy + left * K, 0, (32 - left) * K * 2);
    tail = copy;
  }
  const uint16_t* band(int64_t b) const { return tail && b == count - 1 ? tail : x + b * 32 * K; }
  int rows(int64_t b) const { return static_cast<int>(M - b * 32 < 32 ? M - b * 32 : 32); }
};

// sums [32, 32] = a band times one panel of weights; `rows` that are wanted, 1 .. 32.
INLINE void multiply_band(const uint16_t* x, const uint16_t* w, int64_t K, int rows, float* sums) {
  const bool both = rows > kTileRows;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < K; k += kTileK, w += kTileK * kPanel) {
    for (int i = 0; i < 32; ++i) __builtin_prefetch(w + K * kPanel + i * 32, 0, 2);  // the same block of the next panel
    _tile_loadd(6, w, kPanel * 4);
    _tile_loadd(7, w + kPanel, kPanel * 4);
    _tile_loadd(4, x + k, K * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (both) {
      _tile_loadd(5, x + kTileRows * K + k, K * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + 16, kPanel * 4);
  if (both) {
    _tile_stored(2, sums + kTileRows * kPanel, kPanel * 4);
    _tile_stored(3, sums + kTileRows * kPanel + 16, kPanel * 4);
  }
}

// f(bands, p) for each panel, on all threads, with tiles configured. A task is a few neighbouring panels.
template <class F>
INLINE void for_panels(const uint16_t* x, int64_t M, int64_t K, int64_t panels, F&& f) {
  if (M == 0) return;
  static thread_local Buffer buffer;
  const Bands bands(x, M, K, buffer);
  constexpr int64_t kRun = 4;
  parallel_for((panels + kRun - 1) / kRun, [&](int64_t run) {
    const Tiles tiles;
    for (int64_t p = run * kRun; p < panels && p < (run + 1) * kRun; ++p) f(bands, p);
  });
}

void linear(const Linear& a) {
  for_panels(a.x, a.M, a.K, (a.N + kPanel - 1) / kPanel, [&](const Bands& bands, int64_t p) {
    alignas(64) float sums[32 * kPanel];
    const int64_t n0 = p * kPanel, width = a.N - n0 < kPanel ? a.N - n0 : kPanel;
    for (int64_t b = 0; b < bands.count; ++b) {
      multiply_band(bands.band(b), a.w + p * a.K * kPanel, a.K, bands.rows(b), sums);
      for (int64_t m = 0; m < bands.rows(b); ++m) {
        float* y = a.y + (b * 32 + m) * a.N + n0;
        const float* residual = a.residual ? a.residual + (b * 32 + m) * a.N + n0 : nullptr;
        for (int64_t i = 0; i < kPanel; i += 16) {
          const int left = static_cast<int>(width - i < 16 ? width - i : 16);
          if (left <= 0) break;
          const __mmask16 mask = static_cast<__mmask16>((1u << left) - 1);
          __m512 v = _mm512_load_ps(sums + m * kPanel + i);
          if (a.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, a.bias + n0 + i));
          if (residual) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, residual + i), v);
          _mm512_mask_storeu_ps(y + i, mask, v);
        }
      }
    }
  });
}

void linear_silu_mul(const LinearSiluMul& a) {
  const int64_t panels = a.I / kPanel;
  for_panels(a.x, a.M, a.K, panels, [&](const Bands& bands, int64_t p) {
    alignas(64) float gate[32 * kPanel], up[32 * kPanel];
    for (int64_t b = 0; b < bands.count; ++b) {
      multiply_band(bands.band(b), a.w + p * a.K * kPanel, a.K, bands.rows(b), gate);
      multiply_band(bands.band(b), a.w + (panels + p) * a.K * kPanel, a.K, bands.rows(b), up);
      for (int64_t m = 0; m < bands.rows(b); ++m)
        for (int64_t i = 0; i < kPanel; i += 16)
          store_bf16(a.out + (b * 32 + m) * a.I + p * kPanel + i, silu_mul(load(gate + m * kPanel + i), load(up + m * kPanel + i)));
    }
  });
}

// f(band, its rows, block, p) for each block of at most 32 pairs and each panel, on all threads, with tiles configured.
template <class F>
INLINE void for_bands(const Groups& groups, int64_t panels, F&& f) {
  constexpr int64_t kRun = 4;
  const int64_t runs = (panels + kRun - 1) / kRun;
  parallel_for(groups.count * runs, [&](int64_t i) {
    const Tiles tiles;
    const int64_t b = i / runs, first = i % runs * kRun;
    for (int64_t p = first; p < panels && p < first + kRun; ++p) f(b, groups.blocks[b], p);
  });
}

// Each block has a band of 32 rows of its own. Those behind its last pair hold whatever was there: a row of a tile
// never meets another row, and they are not written out.
void experts(const Experts& a) {
  static thread_local Buffer order, gathered, gated;
  const Groups groups(a.slots, a.P, a.S, 32, order);
  auto* x = reinterpret_cast<uint16_t*>(gathered.floats(groups.count * 16 * a.H));
  auto* inner = reinterpret_cast<uint16_t*>(gated.floats(groups.count * 16 * a.I));
  parallel_for(groups.count, [&](int64_t b) {
    const Block& block = groups.blocks[b];
    for (int64_t m = 0; m < block.size; ++m)
      std::memcpy(x + (b * 32 + m) * a.H, a.x + int64_t{a.rows[groups.pairs[block.begin + m]]} * a.H, a.H * 2);
  });
  const int64_t gates = a.I / kPanel, outs = (a.H + kPanel - 1) / kPanel;
  for_bands(groups, gates, [&](int64_t b, const Block& block, int64_t p) {
    alignas(64) float gate[32 * kPanel], up[32 * kPanel];
    const uint16_t* w = a.gate_up + (block.slot * 2 * gates + p) * a.H * kPanel;
    multiply_band(x + b * 32 * a.H, w, a.H, block.size, gate);
    multiply_band(x + b * 32 * a.H, w + gates * a.H * kPanel, a.H, block.size, up);
    for (int64_t m = 0; m < block.size; ++m)
      for (int64_t i = 0; i < kPanel; i += 16)
        store_bf16(inner + (b * 32 + m) * a.I + p * kPanel + i, silu_mul(load(gate + m * kPanel + i), load(up + m * kPanel + i)));
  });
  for_bands(groups, outs, [&](int64_t b, const Block& block, int64_t p) {
    alignas(64) float sums[32 * kPanel];
    multiply_band(inner + b * 32 * a.I, a.down + (block.slot * outs + p) * a.I * kPanel, a.I, block.size, sums);
    for (int64_t m = 0; m < block.size; ++m)
      for (int64_t i = 0; i < kPanel && p * kPanel + i < a.H; i += 16)
        store(a.y + int64_t{groups.pairs[block.begin + m]} * a.H + p * kPanel + i, load(sums + m * kPanel + i));
  });
}

}  // namespace ISA

// Whether this processor has AMX with bfloat16, and the system lets this process use it.
bool has_amx() {
  static const bool has = [] {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
      return false;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

void amx_linear(const Linear& a) { ISA::linear(a); }
void amx_linear_silu_mul(const LinearSiluMul& a) { ISA::linear_silu_mul(a); }
void amx_experts(const Experts& a) { ISA::experts(a); }

}  // namespace batchgen
