// Causal attention over the paged cache. One warp takes ROWS query heads of one token that share a key-value head.
// Lane j holds the score of position j of a block; then lane l holds the values l, l + 32, … of the head.
#include "elementary.h"

namespace batchgen::ISA {

constexpr int D = HEAD_DIM, kOwn = D / 32, kWarps = 4;

struct Fold {
  float max, sum, value[kOwn];
};

INLINE float warp_max(float x) {
  for (int half = 16; half; half /= 2) x = max(x, __shfl_xor_sync(~0u, x, half));
  return x;
}

// The sequence of token t: the last one that starts at or before it.
INLINE int64_t sequence_of(const int32_t* query_start, int64_t S, int64_t t) {
  int64_t low = 0, high = S;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (query_start[middle] <= t ? low : high) = middle;
  }
  return low;
}

// Folds the scores of one block into a row's maximum and sum. Returns this lane's weight; `shrink` is for the past.
INLINE float soften(float score, bool is_seen, bool is_first, Fold& row, float& shrink) {
  const float block_max = warp_max(is_seen ? score : -__int_as_float(0x7f800000));
  const float new_max = is_first || block_max > row.max ? block_max : row.max;
  const float weight = is_seen ? exp(score - new_max) : 0.0f;
  const float block_sum = tree_sum(weight + __shfl_xor_sync(~0u, weight, 16));
  shrink = is_first ? 0.0f : exp(row.max - new_max);
  row.sum = is_first ? block_sum : fma(row.sum, shrink, block_sum);
  row.max = new_max;
  return weight;
}

// acc = sum over the first `valid` positions of weight * value, position ascending, from +0.
INLINE void weigh(const uint32_t* v, const float (&weights)[ROWS][kKvBlock], int valid, int lane, float (&acc)[ROWS][kOwn]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int i = 0; i < kOwn; ++i) acc[r][i] = 0.0f;
#pragma unroll 4
  for (int j = 0; j < valid; j += 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const uint32_t pair = v[j / 2 * D + i * 32 + lane];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) acc[r][i] = fma(weights[r][j], low_bf16(pair), acc[r][i]);
      if (j + 1 < valid) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) acc[r][i] = fma(weights[r][j + 1], high_bf16(pair), acc[r][i]);
      }
    }
  }
}

KERNEL __launch_bounds__(kWarps * 32) attention(const uint16_t* q, const uint32_t* k_cache, const uint32_t* v_cache,
                                                const int32_t* block_tables, const int32_t* query_start,
                                                const int32_t* positions, uint16_t* out, double scale, int64_t T,
                                                int64_t S, int64_t blocks, int64_t Hq, int64_t Hk) {
  __shared__ float queries[kWarps][ROWS][D], weights[kWarps][ROWS][kKvBlock];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t group = Hq / Hk, tiles = (group + ROWS - 1) / ROWS, task = int64_t{blockIdx.x} * kWarps + warp;
  const int64_t t = task / (Hk * tiles), kv = task / tiles % Hk, begin = task % tiles * ROWS;
  if (t >= T || t >= query_start[S]) return;
  const int64_t first_head = kv * group + begin;
  const int rows = static_cast<int>(group - begin < ROWS ? group - begin : ROWS), seen = positions[t] + 1;
  const int32_t* table = block_tables + sequence_of(query_start, S, t) * blocks;
  for (int r = 0; r < ROWS; ++r)
    for (int d = lane; d < D; d += 32)
      queries[warp][r][d] = r < rows ? low_bf16(q[(t * Hq + first_head + r) * D + d]) : 0.0f;
  __syncwarp();
  Fold row[ROWS];
  for (int b = 0; b * kKvBlock < seen; ++b) {
    const int64_t at = (table[b] * Hk + kv) * D * (kKvBlock / 2);
    const int valid = ::min(seen - b * kKvBlock, kKvBlock);
    float score[ROWS] = {}, shrink[ROWS], acc[ROWS][kOwn];
#pragma unroll 16
    for (int p = 0; p < D / 2; ++p) {
      const uint32_t pair = k_cache[at + p * kKvBlock + lane];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        score[r] = fma(queries[warp][r][2 * p], low_bf16(pair), score[r]);
        score[r] = fma(queries[warp][r][2 * p + 1], high_bf16(pair), score[r]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      weights[warp][r][lane] = soften(score[r] * static_cast<float>(scale), lane < valid, b == 0, row[r], shrink[r]);
    __syncwarp();
    weigh(v_cache + at, weights[warp], valid, lane, acc);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) row[r].value[i] = b == 0 ? acc[r][i] : fma(row[r].value[i], shrink[r], acc[r][i]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (r < rows)
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        out[(t * Hq + first_head + r) * D + i * 32 + lane] = round_bf16(__fdiv_rn(row[r].value[i], row[r].sum));
}

}  // namespace batchgen::ISA
