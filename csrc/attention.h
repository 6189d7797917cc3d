#pragma once

#include "buffer.h"
#include "elementary.h"
#include "linear.h"

namespace batchgen::ISA {

// One tile of query rows that share a KV head. Row r is query head g0 + r % group of token t0 + r / group,
// counted from the tile's first row; each row has its own running maximum, sum and weighted values.
struct FoldState {
  float max[kRows], sum[kRows];
  alignas(64) float value[kRows * kMaxHead];
};

// Folds the scores of one KV block into one row: they become exp(s - max), 0 where nothing is seen.
// Returns the factor by which the row's past must shrink.
INLINE float soften(float* scores, int valid, float scale, float& max, float& sum, bool is_first) {
  vf s0 = load(scores) * set1(scale), s1 = load(scores + 16) * set1(scale);
  const vm seen0 = first(valid < 16 ? valid : 16), seen1 = first(valid < 16 ? 0 : valid - 16);
  const vf lowest = set1(-__builtin_inff());
  const float block_max = lane_max(batchgen::ISA::max(select(seen0, s0, lowest), select(seen1, s1, lowest)));
  const float new_max = is_first || block_max > max ? block_max : max;
  s0 = select(seen0, exp(s0 - set1(new_max)), zero()), s1 = select(seen1, exp(s1 - set1(new_max)), zero());
  store(scores, s0), store(scores + 16, s1);
  const float block_sum = tree_sum(s0 + s1), past = max;
  max = new_max;
  if (is_first) {
    sum = block_sum;
    return 0.0f;
  }
  const float shrink = past == new_max ? 1.0f : lane_max(exp(set1(past - new_max)));
  sum = std::fmaf(sum, shrink, block_sum);
  return shrink;
}

// value = value * shrink + P V for R rows that see the same `valid` positions of the block.
template <int R>
INLINE void weigh_rows(const float* p, const uint32_t* v, int64_t D, int valid, const float* shrink, bool is_first, float* value) {
  for (int64_t d = 0; d < D; d += 16) {
    vf acc[R][1];
    multiply<kKvBlock, 1>(p, v + d, D, valid, acc);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      float* out = value + m * kMaxHead + d;
      store(out, is_first ? acc[m][0] : fma(load(out), set1(shrink[m]), acc[m][0]));
    }
  }
}

struct QueryTile {
  int64_t sequence, head, token, group0;  // group0: the first row's query head within its group
  int rows;
};

inline void attend_tile(const Attention& a, const QueryTile& tile) {
  const int64_t D = a.D, group = a.Hq / a.Hk;
  const int rows = tile.rows;
  const auto query = [&](int r) {
    const int64_t flat = tile.group0 + r;
    return ((tile.token + flat / group) * a.Hq + tile.head * group + flat % group) * D;
  };
  alignas(64) float q[kRows * kMaxHead], scores[kRows][kKvBlock];
  float shrink[kRows];
  FoldState state;
  int seen[kRows], last = 0;
  for (int r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < D; d += 16) store(q + r * kMaxHead + d, load_bf16(a.q + query(r) + d));
    seen[r] = a.positions[tile.token + (tile.group0 + r) / group] + 1;
    last = seen[r] > last ? seen[r] : last;
  }
  for (int64_t b = 0; b * kKvBlock < last; ++b) {
    const int64_t block = a.block_tables[tile.sequence * a.blocks_per_sequence + b];
    const auto* k = reinterpret_cast<const uint32_t*>(a.k_cache + (block * a.Hk + tile.head) * D * kKvBlock);
    const auto* v = reinterpret_cast<const uint32_t*>(a.v_cache + (block * a.Hk + tile.head) * D * kKvBlock);
    if ((b + 1) * kKvBlock < last) {  // the next block lies anywhere in memory: no hardware sees it coming
      const int64_t next = (a.block_tables[tile.sequence * a.blocks_per_sequence + b + 1] * a.Hk + tile.head) * D * kKvBlock;
      for (int64_t i = 0; i < D * kKvBlock; i += 32) {
        __builtin_prefetch(a.k_cache + next + i, 0, 3);
        __builtin_prefetch(a.v_cache + next + i, 0, 3);
      }
    }
    with_rows(rows, [&]<int R>() {
      for (int part = 0; part < 2 / kVectors; ++part) {
        vf acc[R][kVectors];
        multiply<kMaxHead, 1>(q, k + part * 16, kKvBlock, static_cast<int>(D), acc);
        for (int m = 0; m < R; ++m)
          for (int i = 0; i < kVectors; ++i) store(&scores[m][(part + i) * 16], acc[m][i]);
      }
    });
    const auto valid = [&](int r) {
      const int64_t n = seen[r] - b * kKvBlock;
      return static_cast<int>(n < 0 ? 0 : n < kKvBlock ? n : kKvBlock);
    };
    for (int r = 0; r < rows; ++r)
      if (valid(r)) shrink[r] = soften(scores[r], valid(r), a.scale, state.max[r], state.sum[r], b == 0);
    for (int r = 0, end; r < rows; r = end) {  // runs of rows that see equally much
      for (end = r + 1; end < rows && valid(end) == valid(r); ++end) {}
      if (!valid(r)) continue;
      with_rows(end - r, [&]<int R>() {
        weigh_rows<R>(scores[r], v, D, valid(r), shrink + r, b == 0, state.value + r * kMaxHead);
      });
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int64_t d = 0; d < D; d += 16)
      store_low16(a.out + query(r) + d, round_bf16(load(state.value + r * kMaxHead + d) / set1(state.sum[r])));
}

inline void attention(const Attention& a) {
  const int64_t group = a.Hq / a.Hk;
  // Tiles of a sequence: its query rows (tokens x group) in runs of at most kRows. Counted first, so that one
  // task is one tile and long sequences do not hold up a thread.
  static thread_local Buffer buffer;
  auto* starts = reinterpret_cast<int32_t*>(buffer.floats(a.S + 1));
  starts[0] = 0;
  for (int64_t s = 0; s < a.S; ++s) {
    const int64_t rows = (a.query_start[s + 1] - a.query_start[s]) * group;
    starts[s + 1] = starts[s] + static_cast<int32_t>((rows + kRows - 1) / kRows);
  }
  const int64_t tiles = starts[a.S];
  parallel_for(tiles * a.Hk, [&](int64_t task) {
    const int64_t tile = task / a.Hk;
    int64_t low = 0, high = a.S;  // the sequence whose run of tiles holds this one
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (starts[middle] <= tile ? low : high) = middle;
    }
    const int64_t rows = (a.query_start[low + 1] - a.query_start[low]) * group, row = (tile - starts[low]) * kRows;
    attend_tile(a, {low, task % a.Hk, a.query_start[low] + row / group, row % group,
                    static_cast<int>(rows - row < kRows ? rows - row : kRows)});
  });
}

}  // namespace batchgen::ISA
