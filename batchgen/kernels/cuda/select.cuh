// The prefix of the total order whose weight reaches a limit, found by radix: histograms of integer weights over the
// bits of the values, highest bits first. Integer sums commute, so that the threads' order cannot be seen.
#pragma once

#include "rows.cuh"

namespace batchgen::ISA {

constexpr int kThreads = 1024, kBins = 2048;

struct Histogram {
  uint32_t low[kBins], high[kBins];
  uint64_t warp_sum[32], before;  // of `descend`
  int bin, warp_count[32];
  uint32_t id;

  INLINE void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) low[i] = high[i] = 0;
    __syncthreads();
  }
  INLINE void add(uint32_t bin, uint64_t weight) { add_wide(low[bin], high[bin], weight); }
  INLINE uint64_t sum(int bin) const { return uint64_t{high[bin]} << 32 | low[bin]; }

  // The bin, from the highest down, in which the running sum reaches `limit` (>= 1), and the sum `before` it; bin is
  // -1 when all of them together do not. Thread i has bins kBins - 1 - 2 i and the next lower one.
  INLINE void descend(uint64_t limit) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top = kBins - 1 - 2 * threadIdx.x;
    __syncthreads();
    const uint64_t first = sum(top), own = first + sum(top - 1);
    uint64_t up_to = scan(own);
    if (lane == 31) warp_sum[warp] = up_to;
    if (threadIdx.x == 0) bin = -1;
    __syncthreads();
    for (int w = 0; w < warp; ++w) up_to += warp_sum[w];
    const uint64_t begin = up_to - own;
    if (begin < limit && limit <= up_to) {
      const bool in_first = limit <= begin + first;
      bin = in_first ? top : top - 1, before = in_first ? begin : begin + first;
    }
    __syncthreads();
  }
};

// The n-th (from 1) of the ids with this rank that are kept, in ascending order; it must exist.
INLINE uint32_t nth_of_equals(const Row& row, const Kept& kept, uint32_t wanted, uint64_t n, Histogram& h) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t passed = 0;
  for (int begin = 0;; begin += kThreads) {
    const int id = begin + threadIdx.x;
    const float v = id < row.V ? row.value(id) : lowest();
    const bool is_equal = id < row.V && rank(v) == wanted && kept.holds(row, v, id);
    const uint32_t equals = __ballot_sync(~0u, is_equal);
    if (lane == 0) h.warp_count[warp] = __popc(equals);
    __syncthreads();
    uint64_t here = passed, total = passed;
    for (int w = 0; w < 32; ++w) here += w < warp ? h.warp_count[w] : 0, total += h.warp_count[w];
    here += __popc(equals & ((1u << lane) - 1));
    if (is_equal && here + 1 == n) h.id = id;
    __syncthreads();
    if (total >= n || begin + kThreads >= row.V) return h.id;
    passed = total;
  }
}

// The last key of the shortest prefix of the kept among `tokens` (a Row, or the Near of one) whose weight reaches
// `limit` (>= 1); of all of them when none does. weight(z) >= 0 is the same for equal values. Called by all threads.
template <class Tokens, class Weight>
INLINE uint64_t last_of_prefix(const Tokens& tokens, const Row& row, const Kept& kept, uint64_t limit, Histogram& h, Weight&& weight) {
  uint32_t prefix = 0;
  for (int shift : {21, 10, 0}) {
    const int bits = shift ? 11 : 10;
    h.clear();
#pragma unroll 4
    for (int i = threadIdx.x; i < tokens.size(); i += kThreads) {
      float v;
      uint32_t id;
      tokens.get(i, v, id);
      const uint32_t r = rank(v);
      if (shift != 21 && r >> shift >> bits != prefix) continue;
      if (!kept.holds(row, v, id)) continue;
      if (const uint64_t w = weight(row.z(v))) h.add(r >> shift & ((1u << bits) - 1), w);
    }
    h.descend(limit);
    if (h.bin < 0) return kept.from;
    prefix = prefix << bits | static_cast<uint32_t>(h.bin);
    limit -= h.before;
    if (shift) __syncthreads();
  }
  // All tokens in the last bin have one value. As many of them as the rest of the limit asks for, lowest ids first.
  const uint64_t each = weight(row.z(value_of(prefix))), wanted = (limit + each - 1) / each;
  const uint64_t equals = h.sum(h.bin) / each;
  __syncthreads();
  const uint32_t last = wanted < equals ? nth_of_equals(row, kept, prefix, wanted, h) : ~0u;
  const uint64_t key = uint64_t{prefix} << 32 | ~last;
  return key > kept.from ? key : kept.from;
}

template <class Tokens>
INLINE uint64_t last_of_count(const Tokens& tokens, const Row& row, const Kept& kept, uint64_t count, Histogram& h) {
  return last_of_prefix(tokens, row, kept, count, h, [](float) { return uint64_t{1}; });
}

// The sum of weight(z) over the kept among `tokens`.
template <class Tokens, class Weight>
INLINE uint64_t total(const Tokens& tokens, const Row& row, const Kept& kept, Weight&& weight) {
  uint64_t sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < tokens.size(); i += kThreads) {
    float v;
    uint32_t id;
    tokens.get(i, v, id);
    if (kept.holds(row, v, id)) sum += weight(row.z(v));
  }
  return block_sum(sum);
}
template <class Tokens>
INLINE uint64_t total_mass(const Tokens& tokens, const Row& row, const Kept& kept) {
  return total(tokens, row, kept, [](float z) { return mass(z); });
}

}  // namespace batchgen::ISA
