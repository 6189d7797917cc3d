// What the steps of the sampler share: the parameters of a row, the total order, exact masses, sums over a block.
#pragma once

#include "noise.h"

namespace batchgen::ISA {

constexpr int kChunk = 4096;  // ids that one block of threads of a wide step takes
constexpr int kTopLogprobs = 20;
constexpr int kRoom = 4096;       // tokens near the maximum that are kept apart for one row
constexpr int kBands = 64;        // of z, each half a unit, the last one without end. Neither can be seen in the result
constexpr float kLargest = 0x1.fffffep127f;

// One row's parameters as batchgen/kernels/cuda/sampler.py lays them out. A list lies at word `at` of the same upload.
struct List {
  int32_t at, count;
};
struct Params {
  uint64_t seed;
  int64_t position;
  double top_p;
  float temperature, min_p;
  int32_t top_k;
  float presence_penalty, frequency_penalty, repetition_penalty;
  int32_t top_logprobs;
  List bias, output, seen, banned;  // of bias and output pairs of an id and a value

  INLINE bool has_edits() const { return bias.count | output.count | seen.count | banned.count; }
  INLINE bool is_greedy() const { return temperature == 0.0f; }
  INLINE uint64_t limit(int64_t V) const { return top_k > 0 && top_k < V ? top_k : 0; }  // 0: off
  INLINE bool is_filtered(int64_t V) const { return !is_greedy() && (limit(V) || top_p < 1.0); }
};

INLINE float lowest() { return __int_as_float(0xff800000); }

// Greater for the greater value; -0 must have become +0 before.
INLINE uint32_t rank(float value) {
  const uint32_t u = as_uint(value);
  return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}
INLINE float value_of(uint32_t rank) { return as_float(rank ^ (rank >> 31 ? 0x80000000u : 0xffffffffu)); }

// Greater the earlier a token comes in the total order: value descending, id ascending.
INLINE uint64_t order_key(float value, uint32_t id) { return uint64_t{rank(value)} << 32 | ~id; }

constexpr uint64_t kNotBanned = uint64_t{0x00800000u} << 32;  // below every finite value, above -infinity

// A row's values as the filters see them: z = (value - max) * scale.
struct Row {
  const float* values;
  int V;
  float max, scale;

  INLINE float value(int id) const { return values[id] + 0.0f; }
  INLINE float z(float value) const { return (value - max) * scale; }

  INLINE int size() const { return V; }
  INLINE void get(int i, float& v, uint32_t& id) const { v = value(i), id = i; }
};

// The tokens that filters leave.
struct Kept {
  uint64_t from = kNotBanned;  // the last key of the order that stays
  float min_p = 0.0f;          // 0: off

  INLINE bool holds(const Row& row, float value, uint32_t id) const {
    return order_key(value, id) >= from && (!(min_p > 0.0f) || exp(row.z(value)) >= min_p);
  }
};

// Greater or equal for the smaller z.
INLINE int band(float z) { return ::min(__float2int_rz(z * -2.0f), kBands - 1); }

// The tokens of a row in the bands 0 .. depth, in no order. They are a prefix of the total order, mostly a short one.
struct Near {
  const uint64_t* keys;
  int count, depth;  // depth -1: there is no such list

  INLINE bool exists() const { return depth >= 0; }
  // Whether all that is kept is here.
  INLINE bool covers(const Row& row, const Kept& kept) const {
    return exists() && band(row.z(value_of(static_cast<uint32_t>(kept.from >> 32)))) <= depth;
  }

  INLINE int size() const { return count; }
  INLINE void get(int i, float& v, uint32_t& id) const {
    v = value_of(static_cast<uint32_t>(keys[i] >> 32)), id = ~static_cast<uint32_t>(keys[i]);
  }
};

// round(exp(z) 2^40), z <= 0, from two exact parts: sums of it do not depend on their order.
INLINE uint64_t mass(float z) {
  const float e = exp(z) * 0x1p16f, high = round(e);
  return (uint64_t{to_int(high)} << 24) + static_cast<int64_t>(__float2int_rn((e - high) * 0x1p24f));
}

// The sum over the threads up to this one of a warp.
INLINE uint64_t scan(uint64_t x) {
  for (int d = 1; d < 32; d *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, x, d);
    if (threadIdx.x % 32 >= d) x += other;
  }
  return x;
}

// 64-bit sums in shared memory, whose atomics are of 32 bits.
INLINE void add_wide(uint32_t& low, uint32_t& high, uint64_t x) {
  const uint32_t x_low = static_cast<uint32_t>(x), old = atomicAdd(&low, x_low);
  const uint32_t rest = static_cast<uint32_t>(x >> 32) + (old + x_low < old);
  if (rest) atomicAdd(&high, rest);
}

// The maxima of a row's chunks, NaN where a logit is not finite, to the row's. Every thread of a warp calls it.
INLINE bool row_max(const float2* chunks, int count, float& raw, float& edited) {
  raw = edited = lowest();
  bool is_bad = false;
  for (int c = threadIdx.x % 32; c < count; c += 32) {
    const float2 m = chunks[c];
    is_bad |= m.x != m.x;
    raw = max(m.x, raw), edited = max(m.y, edited);
  }
  for (int half = 16; half; half /= 2) {
    raw = max(raw, __shfl_xor_sync(~0u, raw, half));
    edited = max(edited, __shfl_xor_sync(~0u, edited, half));
  }
  return !__any_sync(~0u, is_bad) && edited > lowest();  // false: nothing can be drawn
}

// `combine` over all threads of a block of at most 1024; every thread gets the result. `combine` must commute.
template <class T, class F>
INLINE T over_block(T x, T identity, F&& combine) {
  __shared__ T parts[32];
  for (int half = 16; half; half /= 2) x = combine(x, __shfl_xor_sync(~0u, x, half));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? parts[threadIdx.x % 32] : identity;
  for (int half = 16; half; half /= 2) x = combine(x, __shfl_xor_sync(~0u, x, half));
  return x;
}
INLINE float block_max(float x) {
  return over_block(x, lowest(), [](float a, float b) { return max(a, b); });
}
INLINE uint64_t block_max(uint64_t x) {
  return over_block(x, uint64_t{0}, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}
INLINE uint64_t block_sum(uint64_t x) {
  return over_block(x, uint64_t{0}, [](uint64_t a, uint64_t b) { return a + b; });
}

}  // namespace batchgen::ISA
