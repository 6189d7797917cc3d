// One token a row. The twin, batchgen/kernels/reference/sampler.py, says what is computed; here the vocabulary is
// never sorted: candidates near the maximum are collected, and more of them if these do not suffice. How far the
// collection reaches cannot be seen in the result, since it holds each token above its floor.
#pragma once

#include "buffer.h"
#include "kernels.h"
#include "noise.h"
#include "pool.h"

namespace batchgen::ISA {

constexpr float kLargest = 0x1.fffffep127f, kLowest = -__builtin_inff();
constexpr int64_t kStride = 64;  // ids in one step of the noise; rows are padded to it with -infinity

INLINE float lane0(vf x) {
  alignas(64) float a[16];
  store(a, x);
  return a[0];
}

// A row's values as the filters see them: z = (value - max) * scale.
struct Row {
  float* value;
  int64_t size;  // padded
  float max, scale;

  INLINE vf z(vf v) const { return (v - set1(max)) * set1(scale); }
  INLINE vf z(int64_t i) const { return z(load(value + i)); }
};

// A token: `key` is greater the earlier it comes in the total order (value descending, id ascending).
struct Entry {
  uint64_t key;
  float z, e;  // e = exp(z)

  uint32_t id() const { return ~static_cast<uint32_t>(key); }
  float value() const {
    const uint32_t u = static_cast<uint32_t>(key >> 32), bits = u ^ (u >> 31 ? 0x80000000u : 0xffffffffu);
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }
  // Probabilities are summed as integers, so that every order of summation gives the same.
  uint64_t mass() const { return static_cast<uint64_t>(__builtin_llrint(static_cast<double>(e) * 0x1p40)); }
};

INLINE uint64_t order_key(float value, uint32_t id) {
  uint32_t u;
  std::memcpy(&u, &value, 4);
  return uint64_t{u ^ (u >> 31 ? 0xffffffffu : 0x80000000u)} << 32 | static_cast<uint32_t>(~id);
}

// Copies a row, -0 as +0, and pads it; false when a logit is NaN or infinite.
INLINE bool copy_row(const float* x, int64_t V, Row& row) {
  vu bad = set1(0u);
  int64_t i = 0;
  for (; i + 16 <= V; i += 16) {
    const vf v = load(x + i);
    bad = bad | as_uint(v - v);
    store(row.value + i, v + zero());
  }
  bool is_finite = bits(eq(bad, set1(0u))) == 0xffff;
  for (; i < V; ++i) {
    is_finite &= x[i] - x[i] == 0.0f;
    row.value[i] = x[i] + 0.0f;
  }
  for (; i < row.size; ++i) row.value[i] = kLowest;
  return is_finite;
}

INLINE float saturate(float x) {
  x = x > -kLargest ? x : -kLargest;
  return (x < kLargest ? x : kLargest) + 0.0f;
}

// Bias, penalties, bans. A banned token stays banned under any penalty, so bans come last here.
INLINE void edit_row(const Sample& a, int64_t r, float* value) {
  for (int32_t i = a.bias_start[r]; i < a.bias_start[r + 1]; ++i) {
    float& v = value[a.bias_id[i]];
    v = saturate(v + a.bias[i]);
  }
  for (int32_t i = a.seen_start[r]; i < a.seen_start[r + 1]; ++i) {
    float& v = value[a.seen_id[i]];
    v = saturate(v > 0.0f ? v / a.repetition_penalty[r] : v * a.repetition_penalty[r]);
  }
  for (int32_t i = a.output_start[r]; i < a.output_start[r + 1]; ++i) {
    float& v = value[a.output_id[i]];
    v = v - a.frequency_penalty[r] * static_cast<float>(a.output_count[i]);
    v = saturate(v - a.presence_penalty[r]);
  }
  for (int32_t i = a.banned_start[r]; i < a.banned_start[r + 1]; ++i) value[a.banned_id[i]] = kLowest;
}

INLINE float row_max(const Row& row) {
  vf m[4] = {set1(kLowest), set1(kLowest), set1(kLowest), set1(kLowest)};
  for (int64_t i = 0; i < row.size; i += kStride)
    for (int k = 0; k < 4; ++k) m[k] = max(load(row.value + i + 16 * k), m[k]);
  return lane_max(max(max(m[0], m[1]), max(m[2], m[3])));
}

// Sum of round(exp(z) 2^40) over the row. The product is cut in two exact parts of at most 2^16 and 2^23.
INLINE uint64_t row_mass(const Row& row) {
  uint64_t total = 0;
  for (int64_t begin = 0; begin < row.size; begin += 32 * kStride) {
    const int64_t end = begin + 32 * kStride < row.size ? begin + 32 * kStride : row.size;
    vu high = set1(0u), low = set1(0u);
    for (int64_t i = begin; i < end; i += 16) {
      const vf e = exp(row.z(i)) * set1(0x1p16f), h = round(e);
      high = high + to_int(h), low = low + to_int((e - h) * set1(0x1p24f));
    }
    alignas(64) uint32_t h[16], l[16];
    store(h, high), store(l, low);
    for (int i = 0; i < 16; ++i) total += (uint64_t{h[i]} << 24) + static_cast<uint64_t>(int64_t{static_cast<int32_t>(l[i])});
  }
  return total;
}

// The tokens at or above `floor`, in ascending id. Banned ones lie below every floor.
INLINE int64_t collect(const Row& row, float floor, Entry* entries) {
  int64_t n = 0;
  const vf low = set1(floor > -kLargest ? floor : -kLargest);
  for (int64_t i = 0; i < row.size; i += kStride) {
    uint64_t found = 0;
    for (int k = 0; k < 4; ++k) found |= uint64_t{bits(le(low, load(row.value + i + 16 * k)))} << (16 * k);
    for (; found; found &= found - 1) {
      const int64_t id = i + __builtin_ctzll(found);
      entries[n++].key = order_key(row.value[id], static_cast<uint32_t>(id));
    }
  }
  return n;
}

// How far below the maximum to look, in units of z: a little further each time, at last everywhere.
constexpr int kSteps = 16;
INLINE float depth(float reach, int step) { return step < kSteps - 1 ? reach + 3.0f * static_cast<float>(step) : __builtin_inff(); }

INLINE void weigh(const Row& row, Entry* entries, int64_t n) {
  alignas(64) float block[16] = {}, z[16], e[16];
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    for (int64_t j = 0; j < count; ++j) block[j] = entries[i + j].value();
    const vf v = row.z(load(block));
    store(z, v), store(e, exp(v));
    for (int64_t j = 0; j < count; ++j) entries[i + j].z = z[j], entries[i + j].e = e[j];
  }
}

INLINE uint64_t mass_of(const Entry* entries, int64_t n) {
  uint64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += entries[i].mass();
  return total;
}

// Moves to the front the shortest prefix of the total order whose weight reaches `limit` (all, if none does) and
// returns its length. Halves the open range by the highest bit in which its keys differ; no order inside.
template <class Weight>
INLINE int64_t prefix(Entry* entries, int64_t n, uint64_t limit, Weight&& weight) {
  int64_t begin = 0, end = n;
  while (end - begin > 1) {
    uint64_t some = 0, every = ~uint64_t{0}, sum = 0;
    for (int64_t i = begin; i < end; ++i) some |= entries[i].key, every &= entries[i].key;
    const int bit = 63 - __builtin_clzll(some ^ every);
    int64_t middle = begin;
    for (int64_t i = begin; i < end; ++i)
      if (entries[i].key >> bit & 1) {
        sum += weight(entries[i]);
        const Entry swapped = entries[middle];
        entries[middle++] = entries[i], entries[i] = swapped;
      }
    if (sum >= limit) end = middle;
    else limit -= sum, begin = middle;
  }
  return end;
}

INLINE int64_t best(Entry* entries, int64_t n, int64_t k) {
  return k ? prefix(entries, n, k, [](const Entry&) { return uint64_t{1}; }) : 0;
}

// The mass that the prefix of top-p must reach: top_p * total in float64, cut to an integer in [1, total].
INLINE uint64_t mass_limit(double top_p, uint64_t total) {
  const auto limit = static_cast<uint64_t>(top_p * static_cast<double>(total));
  return limit < 1 ? 1 : limit > total ? total : limit;
}

constexpr int64_t kAll = -1;

// The tokens that top-k, top-p and min-p leave, as entries with their z and e; kAll when none of the three is on.
INLINE int64_t filter(const Sample& a, int64_t r, const Row& row, Entry* entries) {
  const int64_t k = a.top_k[r] > 0 && a.top_k[r] < a.V ? a.top_k[r] : 0;
  const bool by_mass = a.top_p[r] < 1.0;
  const float min_p = a.min_p[r];
  if (!k && !by_mass && !(min_p > 0.0f)) return kAll;
  uint64_t limit = by_mass && !k ? mass_limit(a.top_p[r], row_mass(row)) : 0;
  // Nothing further down than this passes min-p, with room for the rounding of z and e.
  const float reach = k || by_mass ? a.reach : 0.1f - 1.01f * lane0(log(set1(min_p)));
  int64_t n = 0;
  for (int step = 0; step < kSteps; ++step) {
    n = collect(row, row.max - depth(reach, step) * a.temperature[r], entries);
    if (n < k && step < kSteps - 1) continue;
    if (k) n = best(entries, n, k);
    weigh(row, entries, n);
    if (k || !by_mass || mass_of(entries, n) >= limit) break;
  }
  if (by_mass) {
    if (k) limit = mass_limit(a.top_p[r], mass_of(entries, n));
    n = prefix(entries, n, limit, [](const Entry& x) { return x.mass(); });
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i)
    if (entries[i].e >= min_p) entries[kept++] = entries[i];
  return kept;
}

struct Choice {
  float score = kLowest;
  uint32_t id = 0;

  void offer(float s, uint32_t i) {
    if (s > score || (s == score && i < id)) score = s, id = i;
  }
};

INLINE uint32_t draw_all(const Row& row, const NoiseKey& key) {
  vf score = set1(kLowest);
  vu id = set1(0u);
  // Words for a run of ids first, then their noise: two loops of short, independent steps that a CPU can overlap.
  alignas(64) uint32_t words[8 * kStride];
  for (int64_t begin = 0; begin < row.size; begin += 8 * kStride) {
    const int64_t count = row.size - begin < 8 * kStride ? row.size - begin : 8 * kStride;
    for (int64_t i = 0; i < count; i += kStride) {
      vu x[4];
      words_from(key, static_cast<uint32_t>(begin + i), x);
      for (int k = 0; k < 4; ++k) store(words + i + 16 * k, x[k]);
    }
    for (int64_t i = 0; i < count; i += 16) {
      const vf s = row.z(begin + i) + gumbel(load(words + i));
      const vm is_better = lt(score, s);
      score = select(is_better, s, score);
      id = select(is_better, set1(static_cast<uint32_t>(begin + i)) + load(kIota), id);
    }
  }
  alignas(64) float scores[16];
  alignas(64) uint32_t ids[16];
  store(scores, score), store(ids, id);
  Choice choice;
  for (int i = 0; i < 16; ++i) choice.offer(scores[i], ids[i]);
  return choice.id;
}

INLINE uint32_t draw_among(const Entry* entries, int64_t n, const NoiseKey& key) {
  alignas(64) uint32_t ids[16] = {};
  alignas(64) float noise[16];
  Choice choice;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    for (int64_t j = 0; j < count; ++j) ids[j] = entries[i + j].id();
    store(noise, gumbel(words_of(key, load(ids))));
    for (int64_t j = 0; j < count; ++j) choice.offer(entries[i + j].z + noise[j], ids[j]);
  }
  return choice.id;
}

INLINE uint32_t first_of(const Row& row, float value) {
  for (int64_t i = 0;; i += 16)
    if (const uint32_t found = bits(eq(load(row.value + i), set1(value)))) return static_cast<uint32_t>(i + __builtin_ctz(found));
}

// The k first tokens of the whole row, as entries in no order; fewer when fewer are not banned.
INLINE int64_t best_of_row(const Sample& a, const Row& row, int64_t k, Entry* entries) {
  int64_t n = 0;
  for (int step = 0; n < k && step < kSteps; ++step) n = collect(row, row.max - depth(a.reach, step) / row.scale, entries);
  return best(entries, n, k);
}

// Log-probabilities are z - log(sum of exp(z)). `n` is what `filter` left in `entries`; row.scale is 1 for a greedy row.
INLINE void report(const Sample& a, int64_t r, Row& row, Entry* entries, int64_t n) {
  const int64_t k = a.top_logprobs[r];
  float sum;
  if (a.processed) {
    sum = static_cast<float>(n == kAll ? row_mass(row) : mass_of(entries, n)) * 0x1p-40f;
    n = n == kAll ? best_of_row(a, row, k, entries) : best(entries, n, k);
  } else {
    copy_row(a.logits + r * a.V, a.V, row);
    row.max = row_max(row), row.scale = 1.0f;
    vf lanes = zero();
    for (int64_t i = 0; i < row.size; i += 16) lanes = lanes + exp(row.z(i));
    sum = tree_sum(lanes);
    n = best_of_row(a, row, k, entries);
  }
  const vf log_sum = log(set1(sum));
  a.logprob[r] = lane0(row.z(set1(row.value[a.token[r]])) - log_sum);
  for (int64_t i = 0; i < n; ++i) {  // by insertion: n is at most 20
    const Entry next = entries[i];
    int64_t at = i;
    for (; at && entries[at - 1].key < next.key; --at) entries[at] = entries[at - 1];
    entries[at] = next;
  }
  for (int64_t i = 0; i < n; ++i) {
    a.top_id[r * kTopLogprobs + i] = static_cast<int32_t>(entries[i].id());
    a.top_value[r * kTopLogprobs + i] = lane0(row.z(set1(entries[i].value())) - log_sum);
  }
}

// What `filter` left, in no order, as far as there is room.
INLINE void keep(const Sample& a, int64_t r, const Entry* entries, int64_t n) {
  a.kept_size[r] = static_cast<int32_t>(n);
  if (n > a.kept_start[r + 1] - a.kept_start[r]) return;
  int32_t* id = a.kept_id + a.kept_start[r];
  for (int64_t i = 0; i < n; ++i) id[i] = static_cast<int32_t>(entries[i].id());
}

inline void sample_row(const Sample& a, int64_t r, Row row, Entry* entries) {
  a.token[r] = -1, a.logprob[r] = __builtin_nanf(""), a.finite[r] = 0;
  for (int i = 0; i < kTopLogprobs; ++i) a.top_id[r * kTopLogprobs + i] = -1, a.top_value[r * kTopLogprobs + i] = kLowest;
  if (!copy_row(a.logits + r * a.V, a.V, row)) return;
  edit_row(a, r, row.value);
  row.max = row_max(row);
  if (row.max == kLowest) return;
  const bool is_greedy = a.temperature[r] == 0.0f;
  row.scale = is_greedy ? 1.0f : 1.0f / a.temperature[r];
  const int64_t n = is_greedy ? kAll : filter(a, r, row, entries);
  const NoiseKey key{a.seed[r], static_cast<uint64_t>(a.position[r]), kDrawLane};
  a.finite[r] = 1;
  a.token[r] = static_cast<int32_t>(is_greedy ? first_of(row, row.max) : n == kAll ? draw_all(row, key) : draw_among(entries, n, key));
  if (a.kept_start) keep(a, r, entries, n);
  if (a.top_logprobs[r] >= 0) report(a, r, row, entries, n);
}

inline void sample(const Sample& a) {
  parallel_for(a.R, [&](int64_t r) {
    static thread_local Buffer values, entries;
    const int64_t size = (a.V + kStride - 1) / kStride * kStride;
    float* value = values.floats(size);
    auto* entry = reinterpret_cast<Entry*>(entries.floats(size * static_cast<int64_t>(sizeof(Entry) / sizeof(float))));
    sample_row(a, r, {value, size, 0.0f, 0.0f}, entry);
  });
}

// For tests: the noise of ids 0 .. n - 1.
inline void noise(uint64_t seed, int64_t position, uint32_t lane, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kStride) {
    vu x[4];
    alignas(64) float block[kStride];
    words_from({seed, static_cast<uint64_t>(position), lane}, static_cast<uint32_t>(i), x);
    for (int k = 0; k < 4; ++k) store(block + 16 * k, gumbel(x[k]));
    std::memcpy(out + i, block, (n - i < kStride ? n - i : kStride) * 4);
  }
}

}  // namespace batchgen::ISA
