// One tile of x W^T by a block of 256 threads, in the written order: products of a K-block summed from +0 with k
// ascending, block sums added ascending. TM, a macro, is how many rows a thread has.
#pragma once

#include "elementary.h"

namespace batchgen::ISA {

constexpr int kStep = 32, kRows = 16 * TM, kColumns = 64;  // a thread sums TM rows x 4 columns of a tile
constexpr int kXPairs = kRows * (kStep / 2) / 256, kWPairs = kColumns * (kStep / 2) / 256;

// The next kStep inputs of a tile on their way from memory, as bf16 pairs.
struct Staged {
  uint32_t x[kXPairs], w[kWPairs];
};

struct Shared {
  float x[kStep][kRows + 4], w[kStep][kColumns];

  INLINE void store(const Staged& s) {
    const int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kXPairs; ++i) {
      const int m = (i * 256 + tid) / 16, k = tid % 16 * 2;
      x[k][m] = low_bf16(s.x[i]), x[k + 1][m] = high_bf16(s.x[i]);
    }
#pragma unroll
    for (int i = 0; i < kWPairs; ++i) {
      const int n = tid % kColumns, k = (i * 256 + tid) / kColumns * 2;
      w[k][n] = low_bf16(s.w[i]), w[k + 1][n] = high_bf16(s.w[i]);
    }
  }

  INLINE void multiply(int k, int ty, int tx, float (&acc)[TM][4]) const {
    float a[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) a[i] = x[k][ty * TM + i];
    const float4 b = *reinterpret_cast<const float4*>(&w[k][tx * 4]);
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      acc[i][0] = fma(a[i], b.x, acc[i][0]), acc[i][1] = fma(a[i], b.y, acc[i][1]);
      acc[i][2] = fma(a[i], b.z, acc[i][2]), acc[i][3] = fma(a[i], b.w, acc[i][3]);
    }
  }
};

// total = the sums over K-blocks begin .. end of the thread's TM rows x 4 columns. tile.load(staged, k) fetches what
// stands at inputs k .. k + kStep.
template <class Tile>
INLINE void sum_tile(const Tile& tile, int64_t begin, int64_t end, Shared& shared, float (&total)[TM][4]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float part[TM][4] = {};
  Staged staged;
  tile.load(staged, begin);
  for (int64_t k0 = begin; k0 < end; k0 += kStep) {
    shared.store(staged);
    __syncthreads();
    if (k0 + kStep < end) tile.load(staged, k0 + kStep);
    if (end - k0 >= kStep) {
#pragma unroll 8
      for (int k = 0; k < kStep; ++k) shared.multiply(k, ty, tx, part);
    } else {
#pragma unroll 1
      for (int k = 0; k < end - k0; ++k) shared.multiply(k, ty, tx, part);
    }
    __syncthreads();
    const int64_t next = k0 + kStep;
    if (next % kKBlock == 0 || next >= end) {
      const bool is_first = (k0 - begin) < kKBlock;
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) total[i][j] = is_first ? part[i][j] : total[i][j] + part[i][j], part[i][j] = 0.0f;
    }
  }
}

}  // namespace batchgen::ISA
