// One token a row, in four steps: `prepare` edits chunks of the rows and finds their maxima, `filter` turns top-k and
// top-p into the last key of the order that stays, `draw` offers each kept token of a chunk, `finish` takes the best
// and lists log-probabilities. What is computed: batchgen/kernels/reference/sampler.py.
#include "select.cuh"

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

// Grid: chunks, rows. maxima [R, chunks]: of the raw logits (NaN where one is not finite) and of the edited ones.
// `edited` [R, V] takes the values of rows with edits; the logits of other rows are read where they are.
KERNEL __launch_bounds__(256) prepare(const float* logits, const Params* params, float* edited, float2* maxima, int64_t V) {
  __shared__ float value[kChunk];
  const int64_t r = blockIdx.y;
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
  float best = raw;
  if (p.has_edits()) {
    edit(p, reinterpret_cast<const int32_t*>(params), begin, count, value);
    best = lowest();
    for (int i = threadIdx.x; i < count; i += 256) edited[r * V + begin + i] = value[i], best = max(value[i], best);
    best = block_max(best);
  }
  if (threadIdx.x == 0) maxima[r * gridDim.x + blockIdx.x] = {is_bad ? __int_as_float(0x7fffffff) : raw, best};
}

INLINE Row edited_row(const float* logits, const float* edited, const Params& p, int64_t r, int64_t V, float max) {
  return {(p.has_edits() ? edited : logits) + r * V, static_cast<int>(V), max, p.is_greedy() ? 1.0f : __fdiv_rn(1.0f, p.temperature)};
}

// Grid: rows. last [R]: the last key that top-k and top-p leave.
KERNEL __launch_bounds__(kThreads) filter(const float* logits, const Params* params, const float* edited,
                                          const float2* maxima, uint64_t* last, int64_t V, int64_t chunks) {
  __shared__ Histogram histogram;
  const int64_t r = blockIdx.x;
  const Params& p = params[r];
  const uint64_t k = p.top_k > 0 && p.top_k < V ? p.top_k : 0;
  const bool by_mass = p.top_p < 1.0;
  float raw, most;
  Kept kept;
  if (!p.is_greedy() && (k || by_mass) && row_max(maxima + r * chunks, static_cast<int>(chunks), raw, most)) {
    const Row row = edited_row(logits, edited, p, r, V, most);
    if (k) kept.from = last_of_count(row, kept, k, histogram);
    if (by_mass) {
      const uint64_t total = total_mass(row, kept);
      const auto wanted = static_cast<uint64_t>(p.top_p * __ull2double_rn(total));
      const uint64_t limit = wanted < 1 ? 1 : wanted > total ? total : wanted;
      kept.from = last_of_prefix(row, kept, limit, histogram, [](float z) { return mass(z); });
    }
  }
  if (threadIdx.x == 0) last[r] = kept.from;
}

INLINE Kept kept_of(const Params& p, const uint64_t* last, int64_t r) {
  Kept kept;
  if (!p.is_greedy()) kept.min_p = p.min_p;
  if (!p.is_greedy() && last) kept.from = last[r];
  return kept;
}

// Grid: chunks, rows. best [R, chunks]: the key of the best score of a chunk; 0 where no token is kept.
KERNEL __launch_bounds__(256) draw(const float* logits, const Params* params, const float* edited, const float2* maxima,
                                   const uint64_t* last, uint64_t* best, int64_t V) {
  const int64_t r = blockIdx.y;
  const Params& p = params[r];
  float raw, most;
  if (!row_max(maxima + r * gridDim.x, gridDim.x, raw, most)) return;
  const Row row = edited_row(logits, edited, p, r, V, most);
  const Kept kept = kept_of(p, last, r);
  const NoiseKey key{p.seed, static_cast<uint64_t>(p.position), kDrawLane};
  const bool is_greedy = p.is_greedy(), in_fours = V % 4 == 0;
  const int begin = blockIdx.x * kChunk, end = ::min(begin + kChunk, row.V);
  uint64_t own = 0;
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
    if (!is_greedy) words_from(key, id, x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (holds[i]) {
        const float score = is_greedy ? v[i] : row.z(v[i]) + gumbel(x[i]) + 0.0f;
        const uint64_t offer = order_key(score, id + i);
        own = offer > own ? offer : own;
      }
  }
  own = block_max(own);
  if (threadIdx.x == 0) best[r * gridDim.x + blockIdx.x] = own;
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

// log of the sum of exp(z) over a row: 16 lanes, each summing every sixteenth exponential ascending, then the tree.
INLINE float sum_of_lanes(const Row& row, float* room) {
  float sum = 0.0f;
  for (int begin = 0; begin < row.V; begin += kChunk) {
    const int count = ::min(kChunk, row.V - begin);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kThreads) room[i] = exp(row.z(row.value(begin + i)));
    __syncthreads();
    if (threadIdx.x < 32) {
#pragma unroll 16
      for (int i = threadIdx.x % 16; i < count; i += 16) sum = sum + room[i];
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) room[0] = tree_sum(sum);
  __syncthreads();
  return room[0];
}

// The k best of the kept tokens, best first, with their log-probabilities.
INLINE void list_best(const Row& row, Kept kept, int k, float log_sum, Histogram& h, int32_t* ids, float* values) {
  __shared__ uint64_t found[kTopLogprobs];
  __shared__ int count;
  kept.from = last_of_count(row, kept, k, h);
  __syncthreads();
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int id = threadIdx.x; id < row.V; id += kThreads) {
    const float v = row.value(id);
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

// Grid: rows. Log-probabilities are z - log(sum of exp(z)), of the raw logits or of the tokens kept.
KERNEL __launch_bounds__(kThreads) finish(const float* logits, const Params* params, const float* edited,
                                          const float2* maxima, const uint64_t* last, const uint64_t* best,
                                          int32_t* answer, int64_t V, int64_t chunks, int64_t processed) {
  __shared__ union {
    Histogram histogram;
    float room[kChunk];
  } shared;
  const int64_t r = blockIdx.x;
  const Params& p = params[r];
  const Draws draws(answer, gridDim.x);
  int32_t* ids = draws.top_id + r * kTopLogprobs;
  float *values = draws.top_value + r * kTopLogprobs, raw, most;
  if (threadIdx.x < kTopLogprobs) ids[threadIdx.x] = -1, values[threadIdx.x] = lowest();
  const bool is_drawn = row_max(maxima + r * chunks, static_cast<int>(chunks), raw, most);
  uint64_t own = 0;
  if (is_drawn)
    for (int c = threadIdx.x; c < chunks; c += kThreads) own = best[r * chunks + c] > own ? best[r * chunks + c] : own;
  own = block_max(own);
  const int32_t token = is_drawn ? static_cast<int32_t>(~static_cast<uint32_t>(own)) : -1;
  if (threadIdx.x == 0)
    draws.token[r] = token, draws.finite[r] = is_drawn, draws.logprob[r] = __int_as_float(0x7fc00000);
  if (!is_drawn || p.top_logprobs < 0) return;
  Row row = edited_row(logits, edited, p, r, V, most);
  Kept kept = kept_of(p, last, r);
  float sum;
  if (processed) {
    sum = __ull2float_rn(total_mass(row, kept)) * 0x1p-40f;
  } else {
    row = {logits + r * V, static_cast<int>(V), raw, 1.0f}, kept = {};
    sum = sum_of_lanes(row, shared.room);
  }
  const float log_sum = log(sum);
  if (threadIdx.x == 0) draws.logprob[r] = row.z(row.value(token)) - log_sum;
  __syncthreads();
  if (p.top_logprobs > 0) list_best(row, kept, p.top_logprobs, log_sum, shared.histogram, ids, values);
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
