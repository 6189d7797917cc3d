#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace batchgen {

const Kernels& kernels();                   // the set in use; the widest this CPU runs, unless use() was called
std::vector<std::string> instruction_sets();  // those this CPU runs, the narrowest first
void use(const std::string& name);          // throws std::invalid_argument

// The matrix unit of profile native-amx/1; not to be called where has_amx() is false.
bool has_amx();
void amx_linear(const Linear&);
void amx_linear_silu_mul(const LinearSiluMul&);
void amx_experts(const Experts&);

}  // namespace batchgen
