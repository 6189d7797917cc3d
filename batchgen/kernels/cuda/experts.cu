// x W^T for the experts of a MoE layer: a tile has rows of one slot only, and the sums of a row are those of linear.cu.
// Which rows share a tile cannot be seen in the bits.
#include "tile.cuh"

namespace batchgen::ISA {

struct ExpertTile {
  const uint32_t *x, *w;
  int64_t N, pairs, n0;
  int64_t rows[kXPairs];  // of x that this thread loads, or -1

  INLINE void load(Staged& s, int64_t k0) const {
    const int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kXPairs; ++i) {
      const int64_t p = k0 / 2 + tid % 16;
      s.x[i] = rows[i] >= 0 && p < pairs ? x[rows[i] * pairs + p] : 0u;
    }
#pragma unroll
    for (int i = 0; i < kWPairs; ++i) {
      const int64_t n = n0 + tid % kColumns, p = k0 / 2 + (i * 256 + tid) / kColumns;
      s.w[i] = n < N && p < pairs ? w[(n / kPanel * pairs + p) * kPanel + n % kPanel] : 0u;
    }
  }
};

// The slot of a tile: the first whose tiles end behind it.
INLINE int64_t slot_of(const int64_t* tile_ends, int64_t S, int64_t tile) {
  int64_t low = 0, high = S - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (tile_ends[middle] > tile) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Grid: columns, tiles (some to spare). Pair order[i], i in ends[s - 1] .. ends[s], is one of slot s, whose tiles are
// tile_ends[s - 1] .. tile_ends[s]. With `rows`, its inputs are x[rows[order[i]]] and its sums go to out[i]; without,
// its inputs are x[i] and its sums go to out[order[i]].
KERNEL __launch_bounds__(256, 2) expert_sums(const uint32_t* x, const int32_t* rows, const int64_t* order, const int64_t* ends,
                                             const int64_t* tile_ends, const uint32_t* w, float* out, int64_t S, int64_t N,
                                             int64_t K) {
  __shared__ alignas(16) Shared shared;
  const int64_t y = blockIdx.y;
  if (y >= tile_ends[S - 1]) return;
  const int64_t s = slot_of(tile_ends, S, y), M = ends[s];
  const int64_t m0 = (s ? ends[s - 1] : 0) + (y - (s ? tile_ends[s - 1] : 0)) * kRows;
  ExpertTile tile{x, w + s * ((N + kPanel - 1) / kPanel) * (K / 2) * kPanel, N, K / 2, int64_t{blockIdx.x} * kColumns};
#pragma unroll
  for (int i = 0; i < kXPairs; ++i) {
    const int64_t m = m0 + (i * 256 + threadIdx.x) / 16;
    tile.rows[i] = m >= M ? -1 : rows ? rows[order[m]] : m;
  }
  float total[TM][4] = {};
  sum_tile(tile, 0, K, shared, total);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int64_t m = m0 + ty * TM + i;
    if (m >= M) continue;
    const int64_t to = rows ? m : order[m];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t n = tile.n0 + tx * 4 + j;
      if (n < N) out[to * N + n] = total[i][j];
    }
  }
}

}  // namespace batchgen::ISA
