// Norm and turn the heads of q and k, store k and v in the cache. 16 threads a head, which are the 16 lanes of its
// sum of squares: each holds the values i, i + 16, … of the head, and so both ends of the pairs that it turns.
#include "elementary.h"

namespace batchgen::ISA {

constexpr int kHeads = 8;  // in one block of 128 threads
constexpr int D = HEAD_DIM, kHalf = D / 2, kOwn = D / 16;

INLINE void turn(float (&x)[kOwn], const float* weight, float eps, const float* cos, const float* sin, int lane) {
  if (weight) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum = fma(x[i], x[i], sum);
    const float scale = inverse_rms(tree_sum(sum), D, eps);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) x[i] = x[i] * scale * weight[i * 16 + lane];
  }
#pragma unroll
  for (int i = 0; i < kOwn / 2; ++i) {
    const float a = x[i], b = x[i + kOwn / 2], c = cos[i * 16 + lane], s = sin[i * 16 + lane];
    x[i] = fma(a, c, 0.0f - b * s);
    x[i + kOwn / 2] = fma(b, c, a * s);
  }
}

KERNEL __launch_bounds__(128) rotary_store(const float* qkv, const float* q_norm, const float* k_norm, const float* cos,
                                           const float* sin, const int32_t* positions, const int64_t* slots,
                                           uint16_t* q, uint16_t* k_cache, uint16_t* v_cache, double eps, int64_t Hq,
                                           int64_t Hk) {
  const int64_t t = blockIdx.x, heads = Hq + 2 * Hk, head = blockIdx.y * kHeads + threadIdx.x / 16;
  const int lane = threadIdx.x % 16;
  const int64_t angle = int64_t{positions[t]} * kHalf, slot = slots[t], block = slot / kKvBlock, at = slot % kKvBlock;
  float x[kOwn] = {};
  if (head < heads) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) x[i] = qkv[(t * heads + head) * D + i * 16 + lane];
  }
  float turned[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) turned[i] = x[i];
  // Both halves of a warp must come here, whatever their heads are.
  turn(turned, q_norm ? (head < Hq ? q_norm : k_norm) : nullptr, static_cast<float>(eps), cos + angle, sin + angle, lane);
  if (head >= heads) return;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t d = i * 16 + lane;
    if (head < Hq) {
      q[(t * Hq + head) * D + d] = round_bf16(turned[i]);
    } else if (head < Hq + Hk) {
      k_cache[((block * Hk + head - Hq) * kHalf + d / 2) * kKvBlock * 2 + at * 2 + d % 2] = round_bf16(turned[i]);
    } else {
      v_cache[((block * Hk + head - Hq - Hk) * (kKvBlock / 2) + at / 2) * D * 2 + d * 2 + at % 2] = round_bf16(x[i]);
    }
  }
}

}  // namespace batchgen::ISA
