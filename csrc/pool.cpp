#include "pool.h"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace batchgen {
namespace {

// Round to nearest even, denormals kept, for the length of a scope: a host program (or torch) may have
// set the thread's control register otherwise, and the profile's bits may not depend on it.
class IeeeMode {
#if defined(__x86_64__)
 public:
  IeeeMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~IeeeMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
 public:
  IeeeMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const uint64_t plain = 0;
    asm volatile("msr fpcr, %0" ::"r"(plain));
  }
  ~IeeeMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins this often before it sleeps: ops of one step follow each other within microseconds.
constexpr int kSpins = 4000;

class Pool {
 public:
  explicit Pool(int n) {
    for (int i = 1; i < n; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Pool() {
    stop_ = true;
    wake();
    for (auto& t : workers_) t.join();
  }
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(int64_t count, Task task, void* context) {
    const IeeeMode mode;
    if (workers_.empty() || count == 1) {
      for (int64_t i = 0; i < count; ++i) task(context, i);
      return;
    }
    task_ = task, context_ = context, count_ = count;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    wake();
    drain();
    for (int spin = 0;;) {
      const int busy = busy_.load(std::memory_order_acquire);
      if (busy == 0) break;
      if (++spin < kSpins) relax();
      else busy_.wait(busy, std::memory_order_acquire);
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void wake() {
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  // Out of memory in a task ends the op, once every thread has let go of it.
  void drain() {
    try {
      for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) task_(context_, i);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard lock(failure_guard_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
  void work() {
    const IeeeMode mode;
    for (uint32_t seen = 0;;) {
      for (int spin = 0; round_.load(std::memory_order_acquire) == seen;) {
        if (++spin < kSpins) relax();
        else round_.wait(seen, std::memory_order_acquire);
      }
      ++seen;
      if (stop_) return;
      drain();
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::atomic<uint32_t> round_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
  std::mutex failure_guard_;
  std::exception_ptr failure_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
};

// One op at a time: two Python threads may call kernels at once, for the interpreter lock is released in them.
std::mutex guard;
std::unique_ptr<Pool> pool = std::make_unique<Pool>(1);
std::atomic<int> size{1};  // of the pool, to be read without the lock

#if defined(__unix__) || defined(__APPLE__)
// A forked child has the pool but not its threads, and would wait for them for ever.
[[maybe_unused]] const int at_fork = pthread_atfork([] { guard.lock(); }, [] { guard.unlock(); }, [] {
  const int n = pool->size();
  (void)pool.release();  // its threads cannot be joined here
  pool = std::make_unique<Pool>(n);
  guard.unlock();
});
#endif

}  // namespace

void set_threads(int n) {
  const std::lock_guard lock(guard);
  if (n != pool->size()) pool = std::make_unique<Pool>(n);
  size = n;
}
int threads() { return size; }
void run_tasks(int64_t count, Task task, void* context) {
  const std::lock_guard lock(guard);
  pool->run(count, task, context);
}

}  // namespace batchgen
