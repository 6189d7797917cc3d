// x / rms(x) * weight, one block of 128 threads a row. All threads load; 16 lanes sum the squares from shared memory.
#include "elementary.h"

namespace batchgen::ISA {

constexpr int kRoom = 4096;  // values of a row that are held at once

KERNEL __launch_bounds__(128) rms_norm(const float* x, const float* weight, uint2* out, double eps, int64_t H) {
  __shared__ float4 held[kRoom / 4];
  __shared__ float scale;
  const float* values = reinterpret_cast<const float*>(held);
  const float4* row = reinterpret_cast<const float4*>(x + blockIdx.x * H);
  const int quads = static_cast<int>(H / 4);
  float sum = 0.0f;
  for (int begin = 0; begin < quads; begin += kRoom / 4) {
    const int count = ::min(quads - begin, kRoom / 4);
    if (begin) __syncthreads();
    for (int i = threadIdx.x; i < count; i += 128) held[i] = row[begin + i];
    __syncthreads();
    if (threadIdx.x < 32) {
#pragma unroll 16
      for (int i = threadIdx.x % 16; i < count * 4; i += 16) sum = fma(values[i], values[i], sum);
    }
  }
  if (threadIdx.x < 32) scale = inverse_rms(tree_sum(sum), static_cast<int>(H), static_cast<float>(eps));
  __syncthreads();
  const bool holds_all = H <= kRoom;
  for (int i = threadIdx.x; i < quads; i += 128) {
    const float4 v = holds_all ? held[i] : row[i], w = reinterpret_cast<const float4*>(weight)[i];
    out[blockIdx.x * int64_t{quads} + i] = {round_bf16(v.x * scale * w.x) | round_bf16(v.y * scale * w.y) << 16,
                                            round_bf16(v.z * scale * w.z) | round_bf16(v.w * scale * w.w) << 16};
  }
}

}  // namespace batchgen::ISA
