// The kernels of profile portable/1, one table for each instruction set. Shapes are in elements, row-major;
// bf16 is uint16_t; `nullptr` stands for an operand that is left out. Every function returns when its output
// is written. The definition of each is its twin in batchgen/kernels/reference.
#pragma once

#include <cstdint>

namespace batchgen {

constexpr int kLanes = 16;      // lanes of a row reduction
constexpr int kPanel = 32;      // output rows in one packed panel of a weight
constexpr int kKBlock = 256;    // products summed before the sum joins the running total of a linear
constexpr int kTopLogprobs = 20;  // places for the best alternatives of one drawn token
constexpr int kMaxHead = 256;   // values of a head that attention has room for
constexpr int kTopK = 32;       // experts of one token that a router has room for
constexpr int kKvBlock = 32;    // positions in one block of the KV cache and of the attention fold

// y[m, n] = residual[m, n] + (sum_k x[m, k] w[n, k] + bias[n]).  x bf16 [M, K]; w packed [ceil(N/32), K/2, 32, 2].
struct Linear {
  const uint16_t* x;
  const uint16_t* w;
  const float* bias;
  const float* residual;
  float* y;
  int64_t M, N, K;
};

// out[t, :] = table[ids[t], :] as float32; the table is packed as a linear's weight.  out [T, H].
struct Embed {
  const int32_t* ids;
  const uint16_t* table;
  float* out;
  int64_t T, H;
};

// out[t, :] = bf16(x[t, :] * (1 / sqrt(mean(x^2) + eps)) * w).  x float32 [T, H].
struct RmsNorm {
  const float* x;
  const float* w;
  uint16_t* out;
  float eps;
  int64_t T, H;
};

// out[m, i] = bf16(g / (1 + exp(-g)) * u), g = y[m, i], u = y[m, I + i], y the linear [M, 2 I] of x and w.
// I is a multiple of 32.  out bf16 [M, I].
struct LinearSiluMul {
  const uint16_t* x;
  const uint16_t* w;
  uint16_t* out;
  int64_t M, I, K;
};

// Splits qkv [T, (Hq + 2 Hk) D], norms q and k heads (q_norm, k_norm [D] or null), turns them by their position,
// writes q bf16 [T, Hq, D], and K and V into the paged cache at block slots[t] / 32, offset slots[t] % 32.
// k_cache bf16 [blocks, Hk, D/2, 32, 2]; v_cache bf16 [blocks, Hk, 16, D, 2]; cos, sin float32 [positions, D/2].
struct RotaryStore {
  const float* qkv;
  const float* q_norm;
  const float* k_norm;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  const int64_t* slots;
  uint16_t* q;
  uint16_t* k_cache;
  uint16_t* v_cache;
  float eps;
  int64_t T, Hq, Hk, D;
};

// Causal attention of query tokens over the paged cache.  q, out bf16 [T, Hq, D]; the tokens of sequence s are
// query_start[s] .. query_start[s+1], its blocks block_tables[s, :].  A token sees positions 0 .. positions[t].
struct Attention {
  const uint16_t* q;
  const uint16_t* k_cache;
  const uint16_t* v_cache;
  const int32_t* block_tables;
  const int32_t* query_start;
  const int32_t* positions;
  uint16_t* out;
  float scale;
  int64_t S, blocks_per_sequence, Hq, Hk, D;
};

// One token for each row of logits [R, V]; the rest is one entry a row, or a list for each row: entries
// start[r] .. start[r + 1] of ids that are distinct within the row. Bias is added to `bias_id`; `seen_id` (prompt and
// output) meets the repetition penalty, `output_id` the frequency penalty times `output_count` and the presence
// penalty; `banned_id` cannot be drawn. Where top_logprobs[r] >= 0, logprob [R] and the best top_logprobs[r] of top_id
// and top_value [R, 20] are written, else NaN, -1 and -infinity. `finite` is 0, and nothing is drawn, where a
// logit is NaN or infinite or every token is banned. Where `kept_start` is given, kept_size[r] becomes the number of
// tokens that the filters left, -1 when none is on, and their ids stand from kept_start[r] of `kept_id` on, in
// no order, if there is room up to kept_start[r + 1]. `reach` is where to look first and cannot be seen in the result.
struct Sample {
  const float* logits;
  const uint64_t* seed;
  const int64_t* position;
  const float* temperature;
  const double* top_p;
  const float* min_p;
  const int32_t* top_k;
  const float* presence_penalty;
  const float* frequency_penalty;
  const float* repetition_penalty;
  const int32_t* bias_start;
  const int32_t* bias_id;
  const float* bias;
  const int32_t* banned_start;
  const int32_t* banned_id;
  const int32_t* output_start;
  const int32_t* output_id;
  const int32_t* output_count;
  const int32_t* seen_start;
  const int32_t* seen_id;
  const int32_t* top_logprobs;
  int32_t* token;
  float* logprob;
  int32_t* top_id;
  float* top_value;
  uint8_t* finite;
  const int64_t* kept_start;
  int32_t* kept_id;
  int32_t* kept_size;
  float reach;
  bool processed;  // the log-probabilities are of the filtered distribution, not of the raw logits
  int64_t R, V;
};

// The k best experts of each token by its logits [T, E], ids ascending, and their weights [T, k]. Scores are a softmax,
// chosen by the logit, or sigmoids, chosen by sigmoid + bias (bias [E] or null); `norm`: weights are divided by their sum.
struct Route {
  const float* logits;
  const float* bias;
  int32_t* experts;
  float* weights;
  float scale;
  bool is_sigmoid, norm;
  int64_t T, E, k;
};

// y[p, :] = down[slots[p]] silu_mul(gate_up[slots[p]] x[rows[p], :]), each weight packed as a linear's.
// x bf16 [., H]; gate_up [S, 2 I / 32, H/2, 32, 2]; down [S, ceil(H/32), I/2, 32, 2]; y [P, H]. I is a multiple of 32,
// H of 16.
struct Experts {
  const uint16_t* x;
  const int32_t* rows;
  const int32_t* slots;
  const uint16_t* gate_up;
  const uint16_t* down;
  float* y;
  int64_t P, S, H, I;
};

// out[t, :] = residual[t, :] + (sum_j weights[t, j] rows[t, j, :] + shared[t, :]), the sum from +0, j ascending, by FMA.
// shared may be null. rows [T, k, H], H a multiple of 16.
struct Combine {
  const float* rows;
  const float* weights;
  const float* shared;
  const float* residual;
  float* out;
  int64_t T, k, H;
};

struct Kernels {
  const char* name;
  void (*linear)(const Linear&);
  void (*embed)(const Embed&);
  void (*rms_norm)(const RmsNorm&);
  void (*linear_silu_mul)(const LinearSiluMul&);
  void (*rotary_store)(const RotaryStore&);
  void (*attention)(const Attention&);
  void (*route)(const Route&);
  void (*experts)(const Experts&);
  void (*combine)(const Combine&);
  void (*sample)(const Sample&);
  void (*noise)(uint64_t seed, int64_t position, uint32_t lane, float* out, int64_t n);  // for tests
  void (*elementary)(int function, const float* x, float* y, int64_t n);                 // for tests: 0 exp, 1 log
};

}  // namespace batchgen
