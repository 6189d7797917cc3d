#include "dispatch.h"

#include <stdexcept>

namespace batchgen {

extern const Kernels kernels_scalar;
#ifdef HAVE_avx2
extern const Kernels kernels_avx2, kernels_avx512;
#endif
#ifdef HAVE_neon
extern const Kernels kernels_neon;
#endif

namespace {

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> sets{&kernels_scalar};
#ifdef HAVE_avx2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(&kernels_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    sets.push_back(&kernels_avx512);
#endif
#ifdef HAVE_neon
  sets.push_back(&kernels_neon);
#endif
  return sets;
}

const Kernels*& current() {
  static const Kernels* set = available().back();
  return set;
}

}  // namespace

const Kernels& kernels() { return *current(); }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* set : available()) names.emplace_back(set->name);
  return names;
}

void use(const std::string& name) {
  for (const Kernels* set : available())
    if (name == set->name) {
      current() = set;
      return;
    }
  throw std::invalid_argument("this CPU has no instruction set named " + name);
}

#ifndef HAVE_amx
bool has_amx() { return false; }
void amx_linear(const Linear&) { throw std::logic_error("built without AMX"); }
void amx_linear_silu_mul(const LinearSiluMul&) { throw std::logic_error("built without AMX"); }
void amx_experts(const Experts&) { throw std::logic_error("built without AMX"); }
#endif

}  // namespace batchgen
