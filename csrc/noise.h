// The random number of one draw: a function of (seed, position, lane, vocabulary id) and of nothing else.
// The twin is batchgen/kernels/reference/noise.py.
#pragma once

#include "elementary.h"

namespace batchgen::ISA {

// What a random number is for. A lane's number is part of the profile.
constexpr uint32_t kDrawLane = 0;

struct NoiseKey {
  uint64_t seed;
  uint64_t position;
  uint32_t lane;
};

alignas(64) constexpr uint32_t kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) constexpr uint32_t kIotaTransposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) of the counters (index, position low, lane, position high).
INLINE void philox(const NoiseKey& key, vu index, vu (&x)[4]) {
  x[0] = index, x[1] = set1(static_cast<uint32_t>(key.position));
  x[2] = set1(key.lane), x[3] = set1(static_cast<uint32_t>(key.position >> 32));
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  const vu m0 = set1(0xd2511f53u), m1 = set1(0xcd9e8d57u);
  for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
    vu high0, high1;
    const vu low0 = mul_wide(x[0], m0, high0), low1 = mul_wide(x[2], m1, high1);
    x[0] = high1 ^ x[1] ^ set1(k0), x[1] = low1;
    x[2] = high0 ^ x[3] ^ set1(k1), x[3] = low0;
  }
}

// The words of ids first .. first + 63, sixteen to a vector; `first` is a multiple of 4. Id i takes word i % 4 of
// the counter i / 4: one Philox serves four neighbours.
INLINE void words_from(const NoiseKey& key, uint32_t first, vu (&x)[4]) {
  philox(key, set1(first / 4) + load(kIotaTransposed), x);
  transpose4(x);
}

// The words of sixteen ids, whichever they are: equal to those of words_from.
INLINE vu words_of(const NoiseKey& key, vu id) {
  vu x[4];
  philox(key, shr<2>(id), x);
  const vu word = id & set1(3u);
  return select(lt(word, set1(2u)), select(eq(word, set1(0u)), x[0], x[1]), select(eq(word, set1(2u)), x[2], x[3]));
}

// (x + 1/2) 2^-32, rounded once.
INLINE vf unit(vu x) {
  const vf low = fma(from_int(x & set1(0xffffu)), set1(0x1p-32f), set1(0x1p-33f));
  return fma(from_int(shr<16>(x)), set1(0x1p-16f), low);
}

// A standard Gumbel variate -log(E), E = -log(1 - v), v = (x + 1/2) 2^-32 in (0, 1). Near 0, log(1 - v) is
// taken without rounding 1 - v, and near 1, 1 - v is made of the complement of x: 2^-33 < E < 22.9 with all
// its bits at both ends.
INLINE vf gumbel(vu x) {
  const vm is_low = lt(x, set1(0x4a000000u));
  const vf u = unit(select(is_low, x, x ^ set1(0xffffffffu)));
  Split s = split(u);
  s.k = select(is_low, zero(), s.k), s.f = select(is_low, zero() - u, s.f);
  return zero() - log(split(zero() - log(s)));
}

}  // namespace batchgen::ISA
