// Rows of the packed table, as float32. One block of threads a token.
#include "scalar.cuh"

namespace batchgen::ISA {

KERNEL embedding(const int32_t* ids, const uint32_t* table, float2* out, int64_t H) {
  const int64_t t = blockIdx.x, id = ids[t], pairs = H / 2;
  const uint32_t* row = table + id / kPanel * pairs * kPanel + id % kPanel;
  for (int64_t p = threadIdx.x; p < pairs; p += blockDim.x) {
    const uint32_t pair = row[p * kPanel];
    out[t * pairs + p] = {low_bf16(pair), high_bf16(pair)};
  }
}

}  // namespace batchgen::ISA
