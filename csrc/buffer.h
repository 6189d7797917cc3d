#pragma once

#include <cstdlib>
#include <new>

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
      data_ = static_cast<float*>(std::aligned_alloc(64, (n * 4 + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      size_ = n;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace batchgen::ISA
