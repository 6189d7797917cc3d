// The threads that share an op's tasks. How many there are, and who takes which task, cannot be seen
// in the bits: a task writes its own outputs and reads nothing that another task of the same op writes.
#pragma once

#include <cstdint>
#include <type_traits>

namespace batchgen {

void set_threads(int n);
int threads();

using Task = void (*)(void* context, int64_t index);
void run_tasks(int64_t count, Task task, void* context);

// f(i) for each i in [0, count), on all threads; returns when all are done.
template <class F>
inline void parallel_for(int64_t count, F&& f) {
  using Fn = std::remove_reference_t<F>;
  run_tasks(count, [](void* context, int64_t i) { (*static_cast<Fn*>(context))(i); }, &f);
}

}  // namespace batchgen
