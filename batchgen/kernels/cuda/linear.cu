// x W^T in the written order: products of a K-block summed from +0 with k ascending, block sums added ascending.
// `sums` gives running totals over runs of K-blocks, `finish` and `finish_silu_mul` add the runs up. A run is all
// of K, or one block where there are too few tiles to fill the device: which of the two cannot be seen in the bits.
#include "tile.cuh"

namespace batchgen::ISA {

struct Tile {
  const uint32_t *x, *w;
  int64_t M, N, pairs, m0, n0;

  INLINE void load(Staged& s, int64_t k0) const {
    const int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kXPairs; ++i) {
      const int64_t m = m0 + (i * 256 + tid) / 16, p = k0 / 2 + tid % 16;
      s.x[i] = m < M && p < pairs ? x[m * pairs + p] : 0u;
    }
#pragma unroll
    for (int i = 0; i < kWPairs; ++i) {
      const int64_t n = n0 + tid % kColumns, p = k0 / 2 + (i * 256 + tid) / kColumns;
      s.w[i] = n < N && p < pairs ? w[(n / kPanel * pairs + p) * kPanel + n % kPanel] : 0u;
    }
  }
};

// out[run] [M, N] = the total over K-blocks run * length .. (run + 1) * length.
KERNEL __launch_bounds__(256, 2) sums(const uint32_t* x, const uint32_t* w, float* out, int64_t M, int64_t N, int64_t K,
                                      int64_t length) {
  __shared__ alignas(16) Shared shared;
  const Tile tile{x, w, M, N, K / 2, int64_t{blockIdx.y} * kRows, int64_t{blockIdx.x} * kColumns};
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t begin = blockIdx.z * length * kKBlock, rest = K - begin;
  const int64_t end = begin + (rest < length * kKBlock ? rest : length * kKBlock);
  float total[TM][4] = {};
  sum_tile(tile, begin, end, shared, total);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t m = tile.m0 + ty * TM + i, n = tile.n0 + tx * 4 + j;
      if (m < M && n < N) out[(blockIdx.z * M + m) * N + n] = total[i][j];
    }
}

INLINE float over_runs(const float* sums, int64_t runs, int64_t size, int64_t at) {
  float total = sums[at];
  for (int64_t r = 1; r < runs; ++r) total = total + sums[r * size + at];
  return total;
}

// y = residual + (sum + bias); each may be null.
KERNEL finish(const float* sums, const float* bias, const float* residual, float* y, int64_t runs, int64_t M, int64_t N) {
  const int64_t n = int64_t{blockIdx.y} * blockDim.x + threadIdx.x, at = blockIdx.x * N + n;
  if (n >= N) return;
  float total = over_runs(sums, runs, M * N, at);
  if (bias) total = total + bias[n];
  if (residual) total = residual[at] + total;
  y[at] = total;
}

// out bf16 [M, I] = silu(gate) * up; gate above up in the sums [M, 2 I].
KERNEL finish_silu_mul(const float* sums, uint16_t* out, int64_t runs, int64_t M, int64_t I) {
  const int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x, at = blockIdx.x * 2 * I + i;
  if (i >= I) return;
  const float gate = over_runs(sums, runs, M * 2 * I, at), up = over_runs(sums, runs, M * 2 * I, at + I);
  out[blockIdx.x * I + i] = round_bf16(silu_mul(gate, up));
}

}  // namespace batchgen::ISA
