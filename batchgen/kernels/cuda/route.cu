// Before and after the experts: which of them a token asks, one warp a token, and the sum of their answers.
#include "elementary.h"

namespace batchgen::ISA {

// Ascends with x; -0 is +0, and a NaN is above all numbers, so that it is chosen and its row ends. Never the greatest
// uint32_t, so that every key is below the one that the search begins with.
INLINE uint32_t order_of(float x) {
  if (x != x) return 0xfffffffeu;
  const uint32_t bits = as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Scores {
  const float *logits, *bias;
  float most;
  bool is_sigmoid;

  // What the token's weight is made of: exp(logit - maximum), or the sigmoid.
  INLINE float of(int64_t e) const {
    return is_sigmoid ? __fdiv_rn(1.0f, 1.0f + exp(0.0f - logits[e])) : exp(logits[e] - most);
  }
  INLINE uint64_t key(int64_t e) const {
    const float score = !is_sigmoid ? logits[e] : bias ? of(e) + bias[e] : of(e);
    return uint64_t{order_of(score)} << 32 | ~static_cast<uint32_t>(e);
  }
};

INLINE uint64_t warp_max(uint64_t x) {
  for (int half = 16; half; half /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, x, half);
    x = other > x ? other : x;
  }
  return x;
}

KERNEL __launch_bounds__(32) route(const float* logits, const float* bias, int32_t* experts, float* weights, double scale,
                                   int64_t is_sigmoid, int64_t norm, int64_t E, int64_t k) {
  __shared__ float chosen[32];
  const int lane = threadIdx.x;
  const int64_t t = blockIdx.x;
  Scores scores{logits + t * E, bias, 0.0f, is_sigmoid != 0};
  float sum = 1.0f;
  if (!scores.is_sigmoid) {
    scores.most = -__builtin_inff();
    for (int64_t e = lane; e < E; e += 32) scores.most = max(scores.logits[e], scores.most);
    for (int half = 16; half; half /= 2) scores.most = max(scores.most, __shfl_xor_sync(~0u, scores.most, half));
    sum = 0.0f;  // 16 lanes; the other half of the warp does the same
    for (int64_t e = lane % 16; e < E; e += 16) sum = sum + scores.of(e);
    sum = tree_sum(sum);
  }
  uint64_t last = ~uint64_t{0};
  uint32_t id = ~0u;  // of the expert that this lane holds, by score
  for (int64_t j = 0; j < k; ++j) {
    uint64_t best = 0;
    for (int64_t e = lane; e < E; e += 32) {
      const uint64_t key = scores.key(e);
      if (key < last && key > best) best = key;
    }
    last = warp_max(best);
    if (lane == j) id = ~static_cast<uint32_t>(last);
  }
  int rank = 0;  // by id
  for (int j = 0; j < k; ++j) rank += __shfl_sync(~0u, id, j) < id;
  if (lane < k) {
    const float weight = scores.of(id);
    chosen[rank] = scores.is_sigmoid ? weight : __fdiv_rn(weight, sum);
    experts[t * k + rank] = static_cast<int32_t>(id);
  }
  __syncwarp();
  float total = 0.0f;
  for (int64_t j = 0; j < k; ++j) total = total + chosen[j];
  if (scores.is_sigmoid) total = total + 1e-20f;
  if (lane < k) weights[t * k + lane] = (norm ? __fdiv_rn(chosen[lane], total) : chosen[lane]) * static_cast<float>(scale);
}

// out = residual + (sum_j weights[t, j] rows[t, j] + shared), the sum from +0 by FMA. Grid: tokens, runs of columns.
KERNEL combine(const float* rows, const float* weights, const float* shared, const float* residual, float* out, int64_t k,
               int64_t H) {
  const int64_t t = blockIdx.x, i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x, at = t * H + i;
  if (i >= H) return;
  float sum = 0.0f;
  for (int64_t j = 0; j < k; ++j) sum = fma(weights[t * k + j], rows[(t * k + j) * H + i], sum);
  if (shared) sum = sum + shared[at];
  out[at] = residual[at] + sum;
}

}  // namespace batchgen::ISA
