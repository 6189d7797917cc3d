// One token a row, in steps: `prepare` edits chunks of the rows and finds their maxima, `survey` counts tokens by their
// distance from it, `collect` keeps those apart that will suffice, `filter` turns top-k and top-p into the last key of
// the order that stays, `draw` offers each kept token of a chunk, `finish` takes the best and lists log-probabilities.
// Where the collected tokens do not suffice, the whole row is gone through: which of the two cannot be seen in the
// result, which is defined in batchgen/kernels/reference/sampler.py.
#include "select.cuh"
#include "step.cuh"

#define ARGUMENTS \
  const float *logits, const Params *params, uint64_t *scratch, int32_t *answer, int64_t R, int64_t V, int64_t flags
#define STEP const Step step(logits, params, scratch, answer, R, V, flags)

namespace batchgen::ISA {

INLINE float saturate(float x) {
  x = x > -kLargest ? x : -kLargest;
  return (x < kLargest ? x : kLargest) + 0.0f;
}

// Calls f(place in the chunk, word of the list) for each id of a list that lies in the chunk; `step` words an entry.
template <class F>
INLINE void for_ids(const int32_t* words, const List& list, int step, int begin, int count, F&& f) {
  for (int i = threadIdx.x; i < list.count; i += blockDim.x) {
    const int32_t* entry = words + list.at + i * step;
    const int at = entry[0] - begin;
    if (at >= 0 && at < count) f(at, entry);
  }
  __syncthreads();
}

// Bias, penalties, bans, in this order: a banned token stays banned under any penalty.
INLINE void edit(const Params& p, const int32_t* words, int begin, int count, float* value) {
  for_ids(words, p.bias, 2, begin, count, [&](int at, const int32_t* entry) {
    value[at] = saturate(value[at] + __int_as_float(entry[1]));
  });
  for_ids(words, p.seen, 1, begin, count, [&](int at, const int32_t*) {
    const float v = value[at];
    value[at] = saturate(v > 0.0f ? __fdiv_rn(v, p.repetition_penalty) : v * p.repetition_penalty);
  });
  for_ids(words, p.output, 2, begin, count, [&](int at, const int32_t* entry) {
    const float v = value[at] - p.frequency_penalty * __int2float_rn(entry[1]);
    value[at] = saturate(v - p.presence_penalty);
  });
  for_ids(words, p.banned, 1, begin, count, [&](int at, const int32_t*) { value[at] = lowest(); });
}

// Grid: chunks, rows. The maxima of a chunk, its edited values, and of a greedy row its best token.
KERNEL __launch_bounds__(256) prepare(ARGUMENTS) {
  __shared__ float value[kChunk];
  STEP;
  const int64_t r = blockIdx.y, at = r * step.chunks + blockIdx.x;
  const Params& p = params[r];
  const int begin = blockIdx.x * kChunk, count = ::min(kChunk, static_cast<int>(V) - begin);
  float raw = lowest();
  bool is_bad = false;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += 256) {
    const float v = logits[r * V + begin + i] + 0.0f;
    is_bad |= !(v - v == 0.0f);
    value[i] = v, raw = max(v, raw);
  }
  is_bad = __syncthreads_or(is_bad);
  raw = block_max(raw);
  float most = raw;
  if (p.has_edits()) {
    edit(p, reinterpret_cast<const int32_t*>(params), begin, count, value);
    most = lowest();
    for (int i = threadIdx.x; i < count; i += 256) step.edited[r * V + begin + i] = value[i], most = max(value[i], most);
    most = block_max(most);
  }
  uint64_t best = 0;
  if (p.is_greedy()) {
    for (int i = threadIdx.x; i < count; i += 256)
      if (value[i] == most && !best) best = order_key(most, begin + i);
    best = block_max(best);
  }
  if (threadIdx.x == 0) {
    step.maxima[at] = {is_bad ? __int_as_float(0x7fffffff) : raw, most}, step.best[at] = best;
  }
  for (bool is_raw : {false, true})
    if (blockIdx.x == 0 && step.has_survey(is_raw)) step.survey(is_raw).clear(r);
}

INLINE bool is_wanted(const Step& step, bool is_raw, int64_t r) {
  const Params& p = step.params[r];
  return is_raw ? p.top_logprobs > 0 : p.is_filtered(step.V) || (step.flags & kProcessed && p.top_logprobs >= 0);
}

// Adds the chunk's tokens to the bands of its row.
INLINE void survey(const Step& step, bool is_raw) {
  __shared__ uint32_t counts[kBands], low[kBands], high[kBands];
  const int64_t r = blockIdx.y;
  float raw, most;
  if (!is_wanted(step, is_raw, r) || !step.maximum(r, raw, most)) return;
  const Row row = is_raw ? step.raw_row(r, raw) : step.edited_row(r, most);
  const int begin = blockIdx.x * kChunk, end = ::min(begin + kChunk, row.V);
  if (threadIdx.x < kBands) counts[threadIdx.x] = low[threadIdx.x] = high[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll 4
  for (int id = begin + threadIdx.x; id < end; id += 256) {
    const float z = row.z(row.value(id));
    const int b = band(z);
    if (b == kBands - 1) continue;
    atomicAdd(&counts[b], 1u);
    if (!is_raw) add_wide(low[b], high[b], mass(z));
  }
  __syncthreads();
  if (threadIdx.x >= kBands || !counts[threadIdx.x]) return;
  const Survey all = step.survey(is_raw);
  const int64_t at = r * kBands + threadIdx.x;
  atomicAdd(all.counts + at, uint64_t{counts[threadIdx.x]});
  if (!is_raw) atomicAdd(all.masses + at, uint64_t{high[threadIdx.x]} << 32 | low[threadIdx.x]);
}

// How much mass top-p keeps.
INLINE uint64_t mass_limit(double top_p, uint64_t total) {
  const auto wanted = static_cast<uint64_t>(top_p * __ull2double_rn(total));
  return wanted < 1 ? 1 : wanted > total ? total : wanted;
}

// Appends the chunk's tokens that lie near enough to its row's list.
INLINE void collect(const Step& step, bool is_raw) {
  __shared__ int found[kChunk], count, place;
  const int64_t r = blockIdx.y;
  const Params& p = step.params[r];
  float raw, most;
  if (!is_wanted(step, is_raw, r) || !step.maximum(r, raw, most)) return;
  const Row row = is_raw ? step.raw_row(r, raw) : step.edited_row(r, most);
  const Survey all = step.survey(is_raw);
  const bool by_mass = !is_raw && p.is_filtered(step.V) && !p.limit(step.V);
  const uint64_t most_listed = p.top_logprobs > 1 ? p.top_logprobs : 1;
  const uint64_t tokens = !is_raw && p.is_filtered(step.V) ? p.limit(step.V) : most_listed;
  const uint64_t wanted = by_mass ? mass_limit(p.top_p, all.mass(r)) : tokens;
  int length = 0;
  const int depth = all.depth(r, by_mass ? all.masses : all.counts, wanted, length);
  if (depth < 0) return;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const int begin = blockIdx.x * kChunk, end = ::min(begin + kChunk, row.V);
#pragma unroll 4
  for (int id = begin + threadIdx.x; id < end; id += 256)
    if (band(row.z(row.value(id))) <= depth) found[atomicAdd(&count, 1)] = id;
  __syncthreads();
  if (threadIdx.x == 0) {
    place = atomicAdd(&all.marks[r].x, count);
    if (blockIdx.x == 0) all.marks[r].y = depth, all.marks[r].z = length;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += 256) all.keys[r * kRoom + place + i] = order_key(row.value(found[i]), found[i]);
}

// Grids: chunks, rows.
KERNEL __launch_bounds__(256) survey_edited(ARGUMENTS) { STEP; survey(step, false); }
KERNEL __launch_bounds__(256) survey_raw(ARGUMENTS) { STEP; survey(step, true); }
KERNEL __launch_bounds__(256) collect_edited(ARGUMENTS) { STEP; collect(step, false); }
KERNEL __launch_bounds__(256) collect_raw(ARGUMENTS) { STEP; collect(step, true); }

// Grid: rows.
KERNEL __launch_bounds__(kThreads) filter(ARGUMENTS) {
  __shared__ Histogram histogram;
  STEP;
  const int64_t r = blockIdx.x;
  const Params& p = params[r];
  float raw, most;
  if (!p.is_filtered(V) || !step.maximum(r, raw, most)) return;
  const Row row = step.edited_row(r, most);
  const Near near = step.near(r, false);
  const uint64_t k = p.limit(V);
  Kept kept;
  if (k) {
    const bool suffices = near.exists() && near.count >= k;
    kept.from = suffices ? last_of_count(near, row, kept, k, histogram) : last_of_count(row, row, kept, k, histogram);
  }
  if (p.top_p < 1.0) {
    const uint64_t nearby = near.exists() ? total_mass(near, row, kept) : 0;
    const uint64_t limit = mass_limit(
        p.top_p, !k ? step.survey(false).mass(r) : near.covers(row, kept) ? nearby : total_mass(row, row, kept));
    const auto weight = [](float z) { return mass(z); };
    kept.from = nearby >= limit ? last_of_prefix(near, row, kept, limit, histogram, weight)
                                : last_of_prefix(row, row, kept, limit, histogram, weight);
  }
  if (threadIdx.x == 0) step.last[r] = kept.from;
}

INLINE uint64_t score_key(const Row& row, float v, uint32_t word, uint32_t id) {
  return order_key(row.z(v) + gumbel(word) + 0.0f, id);
}

// The best of the kept tokens of a chunk.
INLINE uint64_t best_of_chunk(const Row& row, const Kept& kept, const NoiseKey& key) {
  const bool in_fours = row.V % 4 == 0;
  const int begin = blockIdx.x * kChunk, end = ::min(begin + kChunk, row.V);
  uint64_t best = 0;
  for (int id = begin + threadIdx.x * 4; id < end; id += 256 * 4) {
    float v[4];
    if (in_fours) {
      const float4 four = *reinterpret_cast<const float4*>(row.values + id);
      v[0] = four.x + 0.0f, v[1] = four.y + 0.0f, v[2] = four.z + 0.0f, v[3] = four.w + 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = id + i < end ? row.value(id + i) : lowest();
    }
    bool holds[4], any = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) any |= holds[i] = kept.holds(row, v[i], id + i);
    if (!any) continue;
    vu x[4];
    words_from(key, id, x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (holds[i]) {
        const uint64_t offer = score_key(row, v[i], x[i], id + i);
        best = offer > best ? offer : best;
      }
  }
  return best;
}

INLINE uint64_t best_of_near(const Near& near, const Row& row, const Kept& kept, const NoiseKey& key) {
  uint64_t best = 0;
  for (int i = threadIdx.x; i < near.count; i += 256) {
    float v;
    uint32_t id;
    near.get(i, v, id);
    if (!kept.holds(row, v, id)) continue;
    const uint64_t offer = score_key(row, v, words_of(key, id), id);
    best = offer > best ? offer : best;
  }
  return best;
}

// Grid: chunks, rows. Greedy rows have their best token already.
KERNEL __launch_bounds__(256) draw(ARGUMENTS) {
  STEP;
  const int64_t r = blockIdx.y;
  const Params& p = params[r];
  float raw, most;
  if (p.is_greedy() || !step.maximum(r, raw, most)) return;
  const Row row = step.edited_row(r, most);
  const Kept kept = step.kept(r);
  const Near near = p.is_filtered(V) ? step.near(r, false) : Near{nullptr, 0, -1};
  const NoiseKey key{p.seed, static_cast<uint64_t>(p.position), kDrawLane};
  uint64_t best = 0;
  if (!near.covers(row, kept)) best = best_of_chunk(row, kept, key);
  else if (blockIdx.x == 0) best = best_of_near(near, row, kept, key);
  best = block_max(best);
  if (threadIdx.x == 0) step.best[r * step.chunks + blockIdx.x] = best;
}

// The answer of R rows: [R] each, then [R, 20] each.
struct Draws {
  int32_t* token;
  float* logprob;
  int32_t *finite, *top_id;
  float* top_value;

  INLINE Draws(int32_t* at, int64_t R)
      : token(at), logprob(reinterpret_cast<float*>(at + R)), finite(at + 2 * R), top_id(at + 3 * R),
        top_value(reinterpret_cast<float*>(at + (3 + kTopLogprobs) * R)) {}
};

// The sum of exp(z) over a row: 16 lanes, each summing every sixteenth exponential ascending, then the tree. The first
// warp sums a part while the others fill the next.
INLINE float sum_of_lanes(const Row& row, float (&room)[2][kChunk]) {
  const auto fill = [&](int part, int first, int threads) {
    const int begin = part * kChunk, count = ::min(kChunk, row.V - begin);
    for (int i = static_cast<int>(threadIdx.x) - first; i < count; i += threads)
      if (i >= 0) room[part % 2][i] = exp(row.z(row.value(begin + i)));
  };
  const int parts = (row.V + kChunk - 1) / kChunk;
  float sum = 0.0f;
  fill(0, 0, kThreads);
  for (int part = 0; part < parts; ++part) {
    __syncthreads();
    if (threadIdx.x >= 32) {
      if (part + 1 < parts) fill(part + 1, 32, kThreads - 32);
    } else {
      const int count = ::min(kChunk, row.V - part * kChunk);
#pragma unroll 32
      for (int i = threadIdx.x % 16; i < count; i += 16) sum = sum + room[part % 2][i];
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) room[0][0] = tree_sum(sum);
  __syncthreads();
  return room[0][0];
}

// The k best of the kept among `tokens`, best first, with their log-probabilities.
template <class Tokens>
INLINE void list_best(const Tokens& tokens, const Row& row, Kept kept, int k, float log_sum, Histogram& h, int32_t* ids, float* values) {
  __shared__ uint64_t found[kTopLogprobs];
  __shared__ int count;
  kept.from = last_of_count(tokens, row, kept, k, h);
  __syncthreads();
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens.size(); i += kThreads) {
    float v;
    uint32_t id;
    tokens.get(i, v, id);
    if (kept.holds(row, v, id)) found[atomicAdd(&count, 1)] = order_key(v, id);
  }
  __syncthreads();
  if (threadIdx.x < count) {
    const uint64_t key = found[threadIdx.x];
    int place = 0;
    for (int i = 0; i < count; ++i) place += found[i] > key;
    ids[place] = static_cast<int32_t>(~static_cast<uint32_t>(key));
    values[place] = row.z(value_of(static_cast<uint32_t>(key >> 32))) - log_sum;
  }
}

// The sum of exp(z) over what is kept, from the exact masses.
INLINE float kept_sum(const Step& step, int64_t r, const Row& row, const Near& near, const Kept& kept) {
  uint64_t sum;
  if (near.covers(row, kept)) sum = total_mass(near, row, kept);
  else if (kept.from == kNotBanned && !(kept.min_p > 0.0f)) sum = step.survey(false).mass(r);
  else sum = total_mass(row, row, kept);
  return __ull2float_rn(sum) * 0x1p-40f;
}

// Grid: rows. Log-probabilities are z - log(sum of exp(z)), of the raw logits or of the tokens kept.
KERNEL __launch_bounds__(kThreads) finish(ARGUMENTS) {
  __shared__ union {
    Histogram histogram;
    float room[2][kChunk];
  } shared;
  STEP;
  const int64_t r = blockIdx.x;
  const Params& p = params[r];
  const Draws draws(answer, R);
  int32_t* ids = draws.top_id + r * kTopLogprobs;
  float *values = draws.top_value + r * kTopLogprobs, raw, most;
  if (threadIdx.x < kTopLogprobs) ids[threadIdx.x] = -1, values[threadIdx.x] = lowest();
  const bool is_drawn = step.maximum(r, raw, most), is_raw = !(flags & kProcessed);
  uint64_t best = 0;
  if (is_drawn)
    for (int c = threadIdx.x; c < step.chunks; c += kThreads) best = ::max(best, step.best[r * step.chunks + c]);
  best = block_max(best);
  const int32_t token = is_drawn ? static_cast<int32_t>(~static_cast<uint32_t>(best)) : -1;
  if (threadIdx.x == 0)
    draws.token[r] = token, draws.finite[r] = is_drawn, draws.logprob[r] = __int_as_float(0x7fc00000);
  if (!is_drawn || p.top_logprobs < 0) return;
  const Row row = is_raw ? step.raw_row(r, raw) : step.edited_row(r, most);
  const Kept kept = is_raw ? Kept{} : step.kept(r);
  const Near near = step.near(r, is_raw);
  const float log_sum = log(is_raw ? sum_of_lanes(row, shared.room) : kept_sum(step, r, row, near, kept));
  if (threadIdx.x == 0) draws.logprob[r] = row.z(row.value(token)) - log_sum;
  __syncthreads();
  const int k = p.top_logprobs;
  if (k == 0) return;
  const auto one = [](float) { return uint64_t{1}; };
  if (near.covers(row, kept) || (near.exists() && total(near, row, kept, one) >= k))
    list_best(near, row, kept, k, log_sum, shared.histogram, ids, values);
  else
    list_best(row, row, kept, k, log_sum, shared.histogram, ids, values);
}

// For tests: the noise of ids 0 .. n - 1.
KERNEL noise(float* out, int64_t seed, int64_t position, int64_t n) {
  const int64_t id = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  vu x[4];
  words_from({static_cast<uint64_t>(seed), static_cast<uint64_t>(position), kDrawLane}, static_cast<uint32_t>(id), x);
  for (int i = 0; i < 4; ++i)
    if (id + i < n) out[id + i] = gumbel(x[i]);
}

// For tests: exp and log of n values.
KERNEL elementary(const float* x, float* exps, float* logs, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) exps[i] = exp(x[i]), logs[i] = log(x[i]);
}

}  // namespace batchgen::ISA
