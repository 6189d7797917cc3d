// What one call of the sampler works on: the same arguments for each of its steps.
#pragma once

#include "rows.cuh"

namespace batchgen::ISA {

// Bits of `flags`, as batchgen/kernels/cuda/sampler.py sets them: which lists there are, and what is asked for.
constexpr int kNear = 1, kNearRaw = 2, kProcessed = 4;

// For each row, how many tokens a band holds and their masses, and the list of those near the maximum.
struct Survey {
  uint64_t *counts, *masses;  // [R, kBands]; the last band, where no mass is, stays empty
  int4* marks;                // [R]: x tokens appended so far, y the depth of the list, z its length
  uint64_t* keys;             // [R, kRoom]

  static constexpr int kWords = 2 * kBands + 2 + kRoom;  // a row
  INLINE Survey(uint64_t* at, int64_t R) : counts(at), masses(at + R * kBands), keys(at + R * (kWords - kRoom)) {
    marks = reinterpret_cast<int4*>(at + R * 2 * kBands);
  }
  INLINE void clear(int64_t r) const {  // by at least kBands threads
    if (threadIdx.x < kBands) counts[r * kBands + threadIdx.x] = masses[r * kBands + threadIdx.x] = 0;
    if (threadIdx.x == 0) marks[r] = {0, -1, 0, 0};
  }
  INLINE Near near(int64_t r) const { return {keys + r * kRoom, marks[r].z, marks[r].y}; }

  // These are for a warp: each thread has two bands.
  INLINE uint64_t mass(int64_t r) const {
    const int lane = threadIdx.x % 32;
    const uint64_t up_to = scan(masses[r * kBands + 2 * lane] + masses[r * kBands + 2 * lane + 1]);
    return __shfl_sync(~0u, up_to, 31);
  }
  // The first band with which `weights` reach `wanted`, and how many tokens lie in it and before; -1 when there is
  // none or the list has no room for them.
  INLINE int depth(int64_t r, const uint64_t* weights, uint64_t wanted, int& count) const {
    const int lane = threadIdx.x % 32;
    const int64_t at = r * kBands + 2 * lane;
    const uint64_t second = scan(weights[at] + weights[at + 1]), first = second - weights[at + 1];
    const uint64_t through_second = scan(counts[at] + counts[at + 1]), through_first = through_second - counts[at + 1];
    const uint32_t reached = __ballot_sync(~0u, second >= wanted);
    if (!reached) return -1;
    const bool in_first = first >= wanted;
    const int source = __ffs(reached) - 1;
    const uint64_t tokens = __shfl_sync(~0u, in_first ? through_first : through_second, source);
    const int found = __shfl_sync(~0u, 2 * lane + !in_first, source);
    count = static_cast<int>(tokens);
    return tokens <= kRoom ? found : -1;
  }
};

struct Step {
  const float* logits;   // [R, V]
  const Params* params;  // [R]
  int64_t R, V, chunks;
  int flags;
  float2* maxima;   // [R, chunks]: of the raw logits (NaN where one is not finite), of the edited ones
  uint64_t* best;   // [R, chunks]: key of the best score; 0: no token is kept
  uint64_t* last;   // [R]: the last key that top-k and top-p leave
  uint64_t* lists;  // a Survey for each of the flags kNear and kNearRaw
  float* edited;    // [R, V]: rows with edits; the logits of other rows are read where they are
  int32_t* answer;

  INLINE Step(const float* logits, const Params* params, uint64_t* scratch, int32_t* answer, int64_t R, int64_t V, int64_t flags)
      : logits(logits), params(params), R(R), V(V), chunks((V + kChunk - 1) / kChunk), flags(static_cast<int>(flags)), answer(answer) {
    maxima = reinterpret_cast<float2*>(scratch);
    best = scratch + R * chunks;
    last = best + R * chunks;
    lists = scratch + (R * (2 * chunks + 1) + 1) / 2 * 2;  // what follows is read 16 bytes at once
    const int count = (flags & kNear ? 1 : 0) + (flags & kNearRaw ? 1 : 0);
    edited = reinterpret_cast<float*>(lists + count * R * Survey::kWords);
  }

  // The row's maxima; false: nothing can be drawn. Every thread of a warp calls it.
  INLINE bool maximum(int64_t r, float& raw, float& most) const {
    return row_max(maxima + r * chunks, static_cast<int>(chunks), raw, most);
  }
  INLINE Row raw_row(int64_t r, float max) const { return {logits + r * V, static_cast<int>(V), max, 1.0f}; }
  INLINE Row edited_row(int64_t r, float max) const {
    const Params& p = params[r];
    const float* values = (p.has_edits() ? edited : logits) + r * V;
    return {values, static_cast<int>(V), max, p.is_greedy() ? 1.0f : __fdiv_rn(1.0f, p.temperature)};
  }
  INLINE Kept kept(int64_t r) const {
    const Params& p = params[r];
    Kept kept;
    if (p.is_filtered(V)) kept.from = last[r];
    if (!p.is_greedy()) kept.min_p = p.min_p;
    return kept;
  }

  INLINE bool has_survey(bool is_raw) const { return flags & (is_raw ? kNearRaw : kNear); }
  INLINE Survey survey(bool is_raw) const { return {lists + (is_raw && flags & kNear ? R * Survey::kWords : 0), R}; }
  INLINE Near near(int64_t r, bool is_raw) const { return has_survey(is_raw) ? survey(is_raw).near(r) : Near{nullptr, 0, -1}; }
};

}  // namespace batchgen::ISA
