// Before and after the experts: which of them a token asks, and the sum of their answers.
#pragma once

#include "buffer.h"
#include "rows.h"

namespace batchgen::ISA {

// Ascends with x; -0 is +0, and a NaN is above all numbers, so that it is chosen and its row ends.
INLINE uint32_t order_of(float x) {
  if (x != x) return 0xffffffffu;
  const float plain = x + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &plain, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// ids of the k greatest, by (value descending, id ascending); they come out ascending.
INLINE void best_ids(const float* values, int64_t E, int64_t k, int32_t* ids) {
  uint32_t keys[kTopK];
  int64_t held = 0;
  for (int64_t e = 0; e < E; ++e) {
    const uint32_t key = order_of(values[e]);
    if (held == k && key <= keys[k - 1]) continue;
    int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && keys[at - 1] < key; --at) keys[at] = keys[at - 1], ids[at] = ids[at - 1];
    keys[at] = key, ids[at] = static_cast<int32_t>(e);
  }
  for (int64_t i = 1; i < k; ++i) {
    const int32_t id = ids[i];
    int64_t at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }
}

// scores[e] = exp(x[e] - max x); returns their sum over 16 strided lanes, each ascending, then the tree.
// x and scores have room for whole vectors, which x fills up with -infinity.
INLINE float exponentials(const float* x, int64_t E, float* scores) {
  vf most = load(x);
  for (int64_t i = 16; i < E; i += 16) most = max(load(x + i), most);
  const vf maximum = set1(lane_max(most));
  vf sum = zero();
  for (int64_t i = 0; i < E; i += 16) {
    const vf e = exp(load(x + i) - maximum);
    store(scores + i, e);
    sum = sum + e;
  }
  return tree_sum(sum);
}

INLINE void route_row(const Route& a, int64_t t, float* logits, float* scores) {
  std::memcpy(logits, a.logits + t * a.E, a.E * 4);
  for (int64_t e = a.E; e % 16; ++e) logits[e] = -__builtin_inff();
  float sum = 1.0f;
  if (a.is_sigmoid) {
    for (int64_t i = 0; i < a.E; i += 16) store(scores + i, set1(1.0f) / (set1(1.0f) + exp(zero() - load(logits + i))));
    for (int64_t e = 0; e < a.E; ++e) logits[e] = a.bias ? scores[e] + a.bias[e] : scores[e];
  } else {
    sum = exponentials(logits, a.E, scores);
  }
  int32_t* ids = a.experts + t * a.k;
  float *weights = a.weights + t * a.k, total = 0.0f;
  best_ids(logits, a.E, a.k, ids);
  for (int64_t j = 0; j < a.k; ++j) {
    weights[j] = a.is_sigmoid ? scores[ids[j]] : scores[ids[j]] / sum;
    total = total + weights[j];
  }
  if (a.is_sigmoid) total = total + 1e-20f;
  for (int64_t j = 0; j < a.k; ++j) weights[j] = (a.norm ? weights[j] / total : weights[j]) * a.scale;
}

INLINE void route(const Route& a) {
  for_rows(a.T, a.E * 8, [&](int64_t begin, int64_t end) {
    static thread_local Buffer buffer;
    const int64_t room = (a.E + 15) / 16 * 16;
    float* logits = buffer.floats(2 * room);
    for (int64_t t = begin; t < end; ++t) route_row(a, t, logits, logits + room);
  });
}

INLINE void combine(const Combine& a) {
  for_rows(a.T, (a.k + 2) * a.H, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < a.H; i += 16) {
        vf sum = zero();
        for (int64_t j = 0; j < a.k; ++j)
          sum = fma(set1(a.weights[t * a.k + j]), load(a.rows + (t * a.k + j) * a.H + i), sum);
        if (a.shared) sum = sum + load(a.shared + t * a.H + i);
        store(a.out + t * a.H + i, load(a.residual + t * a.H + i) + sum);
      }
  });
}

}  // namespace batchgen::ISA
