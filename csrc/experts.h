// The experts of a MoE layer: a linear_silu_mul and a linear for each slot, over the rows that chose it. A pair's sums
// are those of a linear of that row alone, for they are made by its inner loop.
#pragma once

#include "groups.h"
#include "linear.h"

namespace batchgen::ISA {

// Pairs that are packed at a time: it bounds the scratch, and cannot be seen.
constexpr int64_t kWavePairs = 2048;

// Packs row_of(i) for each i of the blocks, then calls f(block, tiles, packed, p, scratch) for each block and each panel
// p < panels. i counts from the first pair of the first block; for `scratch` see for_panels.
template <class RowOf, class F>
INLINE void for_blocks(const Block* blocks, int64_t count, int64_t K, int64_t panels, Buffer& buffer, RowOf&& row_of, F&& f) {
  const int64_t first = blocks[0].begin, total = blocks[count - 1].begin + blocks[count - 1].size - first;
  float* packed = buffer.floats(total * K);
  const auto tiles_of = [&](int64_t b) { return Cuts(blocks[b].begin - first, blocks[b].size, kRows); };
  parallel_for(count, [&](int64_t b) {
    const Cuts tiles = tiles_of(b);
    for (int64_t t = 0; t < tiles.count; ++t) {
      const int64_t begin = tiles.begin(t);
      pack_rows([&](int64_t m) { return row_of(begin + m); }, K, tiles.size(t), packed + begin * K);
    }
  });
  // As in for_panels, a task is a few neighbouring panels.
  const int64_t fair = count * panels / (8 * threads());
  const Cuts runs(0, panels, fair < 1 ? 1 : fair > 4 ? 4 : fair);
  parallel_for(count * runs.count, [&](int64_t i) {
    static thread_local Buffer scratch;
    const int64_t b = i / runs.count, run = i % runs.count;
    const Cuts tiles = tiles_of(b);
    float* room = scratch.floats((kKBlock + 2 * tiles.total) * kPanel);
    for (int64_t p = runs.begin(run); p < runs.begin(run + 1); ++p) f(blocks[b], tiles, packed, p, room);
  });
}

inline void expert_wave(const Experts& a, const int32_t* pairs, const Block* blocks, int64_t count) {
  static thread_local Buffer packed_x, packed_inner, gated;
  const int64_t first = blocks[0].begin, total = blocks[count - 1].begin + blocks[count - 1].size - first;
  auto* inner = reinterpret_cast<uint16_t*>(gated.floats((total * a.I + 1) / 2));
  const int64_t gates = a.I / kPanel, outs = (a.H + kPanel - 1) / kPanel;
  const auto x_of = [&](int64_t i) { return a.x + int64_t{a.rows[pairs[first + i]]} * a.H; };
  for_blocks(blocks, count, a.H, gates, packed_x, x_of, [&](const Block& block, const Cuts& tiles, const float* packed, int64_t p, float* scratch) {
    float *gate = scratch + kKBlock * kPanel, *up = gate + tiles.total * kPanel;
    sum_panel(panel_of(a.gate_up, a.H, block.slot * 2 * gates + p), a.H, tiles, packed, scratch, gate);
    sum_panel(panel_of(a.gate_up, a.H, (block.slot * 2 + 1) * gates + p), a.H, tiles, packed, scratch, up);
    for (int64_t m = 0; m < tiles.total; ++m)
      for (int64_t i = 0; i < kPanel; i += 16)
        store_bf16(inner + (tiles.start + m) * a.I + p * kPanel + i, silu_mul(load(gate + m * kPanel + i), load(up + m * kPanel + i)));
  });
  const auto inner_of = [&](int64_t i) { return inner + i * a.I; };
  for_blocks(blocks, count, a.I, outs, packed_inner, inner_of, [&](const Block& block, const Cuts& tiles, const float* packed, int64_t p, float* scratch) {
    float* totals = scratch + kKBlock * kPanel;
    sum_panel(panel_of(a.down, a.I, block.slot * outs + p), a.I, tiles, packed, scratch, totals);
    for (int64_t m = 0; m < tiles.total; ++m)
      for (int64_t i = 0; i < kPanel && p * kPanel + i < a.H; i += 16)
        store(a.y + int64_t{pairs[block.begin + m]} * a.H + p * kPanel + i, load(totals + m * kPanel + i));
  });
}

inline void experts(const Experts& a) {
  static thread_local Buffer order;
  const Groups groups(a.slots, a.P, a.S, kBlockRows, order);
  for (int64_t begin = 0, end; begin < groups.count; begin = end) {
    for (end = begin + 1; end < groups.count; ++end) {
      const Block& next = groups.blocks[end];
      if (next.begin + next.size - groups.blocks[begin].begin > kWavePairs) break;
    }
    expert_wave(a, groups.pairs, groups.blocks + begin, end - begin);
  }
}

}  // namespace batchgen::ISA
