// Things to be cut into parts, and pairs of (row, slot) brought together by slot.
#pragma once

#include "buffer.h"

namespace batchgen::ISA {

// `total` things from `start` on, cut into runs as even as they go and no longer than `longest`.
struct Cuts {
  int64_t start, total, count;
  Cuts(int64_t first, int64_t n, int64_t longest) : start(first), total(n), count((n + longest - 1) / longest) {}
  int64_t begin(int64_t i) const { return start + i * total / count; }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

// Neighbours in `pairs` that meet the weights of one slot together.
struct Block {
  int32_t slot, begin, size;
};

// The numbers of all pairs, by slot and inside a slot ascending, in blocks of at most `longest`. Slots that nobody
// asks for have no block.
struct Groups {
  const int32_t* pairs;
  const Block* blocks;
  int64_t count;

  Groups(const int32_t* slots, int64_t P, int64_t S, int64_t longest, Buffer& buffer) {
    auto* numbers = reinterpret_cast<int32_t*>(buffer.floats(S + 1 + P + 3 * P));
    int32_t *ends = numbers, *sorted = ends + S + 1;
    auto* cut = reinterpret_cast<Block*>(sorted + P);
    std::memset(ends, 0, (S + 1) * 4);
    for (int64_t p = 0; p < P; ++p) ++ends[slots[p] + 1];
    for (int64_t s = 0; s < S; ++s) ends[s + 1] += ends[s];
    for (int64_t p = 0; p < P; ++p) sorted[ends[slots[p]]++] = static_cast<int32_t>(p);
    count = 0;
    for (int64_t s = 0, begin = 0; s < S; begin = ends[s++]) {
      const Cuts parts(begin, ends[s] - begin, longest);
      for (int64_t i = 0; i < parts.count; ++i)
        cut[count++] = {static_cast<int32_t>(s), static_cast<int32_t>(parts.begin(i)), static_cast<int32_t>(parts.size(i))};
    }
    pairs = sorted, blocks = cut;
  }
};

}  // namespace batchgen::ISA
