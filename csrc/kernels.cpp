// The kernels for one instruction set; CMake compiles this file once for each, with ISA set to its name.
#include "kernels.h"

#include "attention.h"
#include "elementary.h"
#include "experts.h"
#include "linear.h"
#include "route.h"
#include "rows.h"
#include "sampler.h"

namespace batchgen {
namespace ISA {

void elementary(int function, const float* x, float* y, int64_t n) {
  alignas(64) float block[16];
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t bytes = (n - i < 16 ? n - i : 16) * 4;
    std::memset(block, 0, sizeof block);
    std::memcpy(block, x + i, bytes);
    const vf v = load(block);
    store(block, function == 0 ? exp(v) : log(v));
    std::memcpy(y + i, block, bytes);
  }
}

}  // namespace ISA

#define STRING_(x) #x
#define STRING(x) STRING_(x)
extern const Kernels CAT(kernels_, ISA);
const Kernels CAT(kernels_, ISA) = {
    STRING(ISA),    ISA::linear,       ISA::embed,     ISA::rms_norm,
    ISA::linear_silu_mul,  ISA::rotary_store, ISA::attention, ISA::route,
    ISA::experts,   ISA::combine,      ISA::sample,    ISA::noise,
    ISA::elementary,
};

}  // namespace batchgen
