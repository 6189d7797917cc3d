#pragma once

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "simd.h"

namespace batchgen::ISA {

// Scratch that grows to the largest size asked for and never shrinks. Not std::vector: its functions would be
// compiled once for each instruction set under one name, and the linker may keep the copy this CPU cannot run.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  float* floats(int64_t n) {
    if (n > size_) {
      std::free(data_);
      const int64_t align = n * 4 < kHugePage / 4 ? 64 : kHugePage, bytes = (n * 4 + align - 1) / align * align;
      data_ = static_cast<float*>(std::aligned_alloc(align, bytes));
      if (!data_) throw std::bad_alloc();
#if defined(__linux__)
      if (align == kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);  // see kernels/cpu/memory.py
#endif
      size_ = bytes / 4;
    }
    return data_;
  }

 private:
  static constexpr int64_t kHugePage = 2 << 20;
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace batchgen::ISA
