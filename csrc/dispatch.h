#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace batchgen {

const Kernels& kernels();                   // the set in use; the widest this CPU runs, unless use() was called
std::vector<std::string> instruction_sets();  // those this CPU runs, the narrowest first
void use(const std::string& name);          // throws std::invalid_argument

}  // namespace batchgen
